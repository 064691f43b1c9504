#define _GNU_SOURCE /* fopencookie */

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include <rte_alarm.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>
#include <rte_per_lcore.h>

static uint16_t at_most_a_burst(uint16_t count)
{
	return RTE_MIN(count, (uint16_t)DPDK_SYS_BURST_MAX);
}

static void describe(struct dpdk_sys_frame *frame, struct rte_mbuf *mbuf)
{
	frame->mbuf = mbuf;
	frame->data = rte_pktmbuf_mtod(mbuf, uint8_t *);
	frame->len_bytes = mbuf->data_len;
	frame->room_bytes = (uint32_t)mbuf->data_len + rte_pktmbuf_tailroom(mbuf);
}

/* Runs what follows as the caller's lcore; returns which one the thread was before. */
static unsigned int enter(const struct dpdk_sys_caller *caller)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);

	if (caller->lcore != DPDK_SYS_NO_LCORE)
		RTE_PER_LCORE(_lcore_id) = caller->lcore;
	return before;
}

static void leave(unsigned int before)
{
	RTE_PER_LCORE(_lcore_id) = before;
}

/* Where this thread goes on when its burst faults; NULL outside of guarded bursts. Read in a signal handler, so it
 * must be there without being made at its first use. */
static __thread sigjmp_buf *volatile landing __attribute__((tls_model("initial-exec")));

/* Nothing in here is changed between the two returns of sigsetjmp and read behind the second. */
static __attribute__((noinline)) uint16_t guarded_rx(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
						     struct rte_mbuf **mbufs, uint16_t max)
{
	sigjmp_buf here;
	uint16_t got;

	if (sigsetjmp(here, 0) != 0) {
		landing = NULL;
		caller->given_up += 1;
		return 0;
	}
	landing = &here;
	got = rte_eth_rx_burst(port, queue, mbufs, max);
	landing = NULL;
	return got;
}

static __attribute__((noinline)) uint16_t guarded_tx(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
						     struct rte_mbuf **mbufs, uint16_t count)
{
	sigjmp_buf here;
	uint16_t taken;

	if (sigsetjmp(here, 0) != 0) {
		landing = NULL;
		caller->given_up += 1;
		return count;
	}
	landing = &here;
	taken = rte_eth_tx_burst(port, queue, mbufs, count);
	landing = NULL;
	return taken;
}

uint16_t dpdk_sys_rx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   struct dpdk_sys_frame *frames, uint16_t max)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int before = enter(caller);
	uint16_t got, kept = 0;

	max = at_most_a_burst(max);
	got = caller->guarded ? guarded_rx(caller, port, queue, mbufs, max) :
				rte_eth_rx_burst(port, queue, mbufs, max);
	for (uint16_t i = 0; i < got; i++) {
		if (unlikely(mbufs[i]->nb_segs != 1)) {
			rte_pktmbuf_free(mbufs[i]);
			caller->refused += 1;
			continue;
		}
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
		describe(&frames[kept++], mbufs[i]);
	}
	leave(before);
	return kept;
}

uint16_t dpdk_sys_tx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int before = enter(caller);
	uint16_t taken;

	count = at_most_a_burst(count);
	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		mbuf->data_off = (uint16_t)(frames[i].data - (uint8_t *)mbuf->buf_addr);
		mbuf->data_len = (uint16_t)frames[i].len_bytes;
		mbuf->pkt_len = frames[i].len_bytes;
		mbufs[i] = mbuf;
	}
	taken = caller->guarded ? guarded_tx(caller, port, queue, mbufs, count) :
				  rte_eth_tx_burst(port, queue, mbufs, count);
	leave(before);
	return taken;
}

uint16_t dpdk_sys_alloc_bulk(const struct dpdk_sys_caller *caller, struct rte_mempool *pool,
			     struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int before = enter(caller);
	int lent;

	count = at_most_a_burst(count);
	lent = rte_pktmbuf_alloc_bulk(pool, mbufs, count);
	leave(before);
	if (lent != 0)
		return 0;
	for (uint16_t i = 0; i < count; i++)
		describe(&frames[i], mbufs[i]);
	return count;
}

void dpdk_sys_free_bulk(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int before = enter(caller);

	count = at_most_a_burst(count);
	for (uint16_t i = 0; i < count; i++)
		mbufs[i] = frames[i].mbuf;
	rte_pktmbuf_free_bulk(mbufs, count);
	leave(before);
}

void dpdk_sys_recover(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count)
{
	unsigned int before = enter(caller);

	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		/* As rte_pktmbuf_init left it, which is how a pool wants it back. */
		rte_mbuf_refcnt_set(mbuf, 1);
		mbuf->next = NULL;
		mbuf->nb_segs = 1;
		mbuf->ol_flags = 0;
		rte_mempool_put(mbuf->pool, mbuf);
	}
	leave(before);
}

/* What handled these signals before us. */
static struct {
	int signal;
	struct sigaction before;
} faults[] = { { .signal = SIGSEGV }, { .signal = SIGBUS } };

static void pass_on(int signal, siginfo_t *info, void *context, const struct sigaction *before)
{
	if (before->sa_flags & SA_SIGINFO) {
		before->sa_sigaction(signal, info, context);
	} else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
		before->sa_handler(signal);
	} else if (info->si_code > 0 || before->sa_handler == SIG_DFL) {
		/* The instruction is tried again, and ends the process; a signal that was sent is sent again. */
		struct sigaction standard = { .sa_handler = SIG_DFL };

		sigaction(signal, &standard, NULL);
		if (info->si_code <= 0)
			raise(signal);
	}
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	/* A positive code is the kernel's: an instruction of this thread did it. */
	if (landing != NULL && info->si_code > 0) {
		/* Who passed the signal on to us may have had it blocked meanwhile. */
		sigset_t open;

		sigemptyset(&open);
		sigaddset(&open, signal);
		pthread_sigmask(SIG_UNBLOCK, &open, NULL);
		siglongjmp(*landing, 1);
	}
	for (size_t i = 0; i < RTE_DIM(faults); i++)
		if (faults[i].signal == signal)
			pass_on(signal, info, context, &faults[i].before);
}

static int guard_error;

static void install_guard(void)
{
	/* The signal stays open while it is handled: the handler of a guarded burst never returns. */
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

	for (size_t i = 0; i < RTE_DIM(faults) && guard_error == 0; i++) {
		if (sigaction(faults[i].signal, NULL, &faults[i].before) != 0 ||
		    sigaction(faults[i].signal, &action, NULL) != 0)
			guard_error = -errno;
	}
}

int dpdk_sys_guard(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install_guard);
	return guard_error;
}

uint32_t dpdk_sys_lease_lcore(void)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);
	uint32_t lcore = DPDK_SYS_NO_LCORE;

	/* DPDK has lcores for threads. The lease outlives this thread, and is used by those that come. */
	RTE_PER_LCORE(_lcore_id) = LCORE_ID_ANY;
	if (rte_thread_register() == 0)
		lcore = rte_lcore_id();
	leave(before);
	return lcore;
}

void dpdk_sys_return_lcore(uint32_t lcore)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);

	RTE_PER_LCORE(_lcore_id) = lcore;
	rte_thread_unregister();
	leave(before);
}

struct listing {
	struct dpdk_sys_frame *frames;
	uint32_t max;
};

static void list_one(struct rte_mempool *pool, void *argument, void *object, unsigned int index)
{
	struct listing *listing = argument;
	struct rte_mbuf *mbuf = object;
	/* What the buffer holds now, or held last, is not what its next loan begins with. */
	uint16_t headroom_bytes = RTE_MIN((uint16_t)RTE_PKTMBUF_HEADROOM, mbuf->buf_len);

	(void)pool;
	if (index >= listing->max)
		return;
	listing->frames[index].mbuf = mbuf;
	listing->frames[index].data = (uint8_t *)mbuf->buf_addr + headroom_bytes;
	listing->frames[index].len_bytes = 0;
	listing->frames[index].room_bytes = mbuf->buf_len - headroom_bytes;
}

uint32_t dpdk_sys_pool_frames(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint32_t max)
{
	struct listing listing = { .frames = frames, .max = max };

	return rte_mempool_obj_iter(pool, list_one, &listing);
}

/* Somebody wants the interrupt thread to stay; it does. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool wanted, stays;
} hold = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

#define HOLD_PATIENCE_S 1

/* Alarms run on the interrupt thread. One that comes when nobody wants it any more changes nothing. */
static void stay(void *argument)
{
	(void)argument;
	pthread_mutex_lock(&hold.lock);
	while (hold.wanted) {
		hold.stays = true;
		pthread_cond_broadcast(&hold.changed);
		pthread_cond_wait(&hold.changed, &hold.lock);
	}
	hold.stays = false;
	pthread_cond_broadcast(&hold.changed);
	pthread_mutex_unlock(&hold.lock);
}

int dpdk_sys_hold_interrupts(void)
{
	struct timespec until;
	bool stays;
	int error;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += HOLD_PATIENCE_S;
	pthread_mutex_lock(&hold.lock);
	hold.wanted = true;
	error = rte_eal_alarm_set(1, stay, NULL);
	while (!hold.stays && error == 0)
			error = -pthread_cond_timedwait(&hold.changed, &hold.lock, &until);
	stays = hold.stays;
	hold.wanted = stays;
	pthread_mutex_unlock(&hold.lock);
	return stays ? 0 : error;
}

void dpdk_sys_release_interrupts(void)
{
	pthread_mutex_lock(&hold.lock);
	hold.wanted = false;
	pthread_cond_broadcast(&hold.changed);
	while (hold.stays)
		pthread_cond_wait(&hold.changed, &hold.lock);
	pthread_mutex_unlock(&hold.lock);
}

int dpdk_sys_link_is_up(uint16_t port)
{
	struct rte_eth_link link = { 0 };

	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

int dpdk_sys_errno(void)
{
	return rte_errno;
}

uint32_t dpdk_sys_lcore_id(void)
{
	return rte_lcore_id();
}

/* Where the log goes. Its stream is made once and kept: whoever logs may hold it at any time. */
static struct {
	pthread_mutex_t lock;
	FILE *stream;
	dpdk_sys_log_sink sink;
	void *context;
} log_to = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ssize_t write_log(void *cookie, const char *text, size_t bytes)
{
	(void)cookie;
	pthread_mutex_lock(&log_to.lock);
	if (log_to.sink != NULL)
		log_to.sink(log_to.context, rte_log_cur_msg_loglevel(), text, bytes);
	pthread_mutex_unlock(&log_to.lock);
	return (ssize_t)bytes;
}

int dpdk_sys_log_to(dpdk_sys_log_sink sink, void *context)
{
	static const cookie_io_functions_t functions = { .write = write_log };
	int error = 0;

	pthread_mutex_lock(&log_to.lock);
	if (log_to.stream == NULL) {
		log_to.stream = fopencookie(NULL, "w", functions);
		if (log_to.stream == NULL)
			error = -errno;
		else
			/* DPDK writes a message in one call: so one call of the sink is one message of one thread. */
			setvbuf(log_to.stream, NULL, _IONBF, 0);
	}
	if (error == 0) {
		log_to.sink = sink;
		log_to.context = context;
		rte_openlog_stream(sink != NULL ? log_to.stream : NULL);
	}
	pthread_mutex_unlock(&log_to.lock);
	return error;
}

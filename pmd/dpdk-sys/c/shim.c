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

static uint16_t limit_to_burst(uint16_t count)
{
	return RTE_MIN(count, (uint16_t)DPDK_SYS_BURST_MAX);
}

static void fill_record(struct dpdk_sys_frame *frame, struct rte_mbuf *mbuf)
{
	frame->mbuf = mbuf;
	frame->data = rte_pktmbuf_mtod(mbuf, uint8_t *);
	frame->len_bytes = mbuf->data_len;
	frame->room_bytes = (uint32_t)mbuf->data_len + rte_pktmbuf_tailroom(mbuf);
}

/* Makes the thread use the caller's lcore; returns its previous lcore. */
static unsigned int enter_lcore(const struct dpdk_sys_caller *caller)
{
	unsigned int previous = RTE_PER_LCORE(_lcore_id);

	if (caller->lcore != DPDK_SYS_NO_LCORE)
		RTE_PER_LCORE(_lcore_id) = caller->lcore;
	return previous;
}

static void restore_lcore(unsigned int previous)
{
	RTE_PER_LCORE(_lcore_id) = previous;
}

/* Jump target of this thread when its burst faults; NULL outside of guarded bursts. Read in a signal handler, so it
 * must not be allocated at its first use. */
static __thread sigjmp_buf *volatile fault_jump __attribute__((tls_model("initial-exec")));

/* No local variable is changed between the two returns of sigsetjmp and read after the second. */
static __attribute__((noinline)) uint16_t guarded_rx(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
						     struct rte_mbuf **mbufs, uint16_t max)
{
	sigjmp_buf jump;
	uint16_t got;

	if (sigsetjmp(jump, 0) != 0) {
		fault_jump = NULL;
		caller->given_up += 1;
		return 0;
	}
	fault_jump = &jump;
	got = rte_eth_rx_burst(port, queue, mbufs, max);
	fault_jump = NULL;
	return got;
}

static __attribute__((noinline)) uint16_t guarded_tx(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
						     struct rte_mbuf **mbufs, uint16_t count)
{
	sigjmp_buf jump;
	uint16_t accepted;

	if (sigsetjmp(jump, 0) != 0) {
		fault_jump = NULL;
		caller->given_up += 1;
		return count;
	}
	fault_jump = &jump;
	accepted = rte_eth_tx_burst(port, queue, mbufs, count);
	fault_jump = NULL;
	return accepted;
}

uint16_t dpdk_sys_rx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   struct dpdk_sys_frame *frames, uint16_t max)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int previous = enter_lcore(caller);
	uint16_t got, kept = 0;

	max = limit_to_burst(max);
	got = caller->guarded ? guarded_rx(caller, port, queue, mbufs, max) :
				rte_eth_rx_burst(port, queue, mbufs, max);
	for (uint16_t i = 0; i < got; i++) {
		if (unlikely(mbufs[i]->nb_segs != 1)) {
			rte_pktmbuf_free(mbufs[i]);
			caller->multi_segment_drops += 1;
			continue;
		}
		rte_prefetch0(rte_pktmbuf_mtod(mbufs[i], void *));
		fill_record(&frames[kept++], mbufs[i]);
	}
	restore_lcore(previous);
	return kept;
}

uint16_t dpdk_sys_tx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int previous = enter_lcore(caller);
	uint16_t accepted;

	count = limit_to_burst(count);
	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		mbuf->data_off = (uint16_t)(frames[i].data - (uint8_t *)mbuf->buf_addr);
		mbuf->data_len = (uint16_t)frames[i].len_bytes;
		mbuf->pkt_len = frames[i].len_bytes;
		mbufs[i] = mbuf;
	}
	accepted = caller->guarded ? guarded_tx(caller, port, queue, mbufs, count) :
				     rte_eth_tx_burst(port, queue, mbufs, count);
	restore_lcore(previous);
	return accepted;
}

uint16_t dpdk_sys_alloc_bulk(const struct dpdk_sys_caller *caller, struct rte_mempool *pool,
			     struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int previous = enter_lcore(caller);
	int result;

	count = limit_to_burst(count);
	result = rte_pktmbuf_alloc_bulk(pool, mbufs, count);
	restore_lcore(previous);
	if (result != 0)
		return 0;
	for (uint16_t i = 0; i < count; i++)
		fill_record(&frames[i], mbufs[i]);
	return count;
}

void dpdk_sys_free_bulk(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	unsigned int previous = enter_lcore(caller);

	count = limit_to_burst(count);
	for (uint16_t i = 0; i < count; i++)
		mbufs[i] = frames[i].mbuf;
	rte_pktmbuf_free_bulk(mbufs, count);
	restore_lcore(previous);
}

void dpdk_sys_recover(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count)
{
	unsigned int previous = enter_lcore(caller);

	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		/* As rte_pktmbuf_init left it, which the pool requires of its buffers. */
		rte_mbuf_refcnt_set(mbuf, 1);
		mbuf->next = NULL;
		mbuf->nb_segs = 1;
		mbuf->ol_flags = 0;
		rte_mempool_put(mbuf->pool, mbuf);
	}
	restore_lcore(previous);
}

/* The handled signals, and their previous handlers. */
static struct {
	int signal;
	struct sigaction previous;
} faults[] = { { .signal = SIGSEGV }, { .signal = SIGBUS } };

static void pass_on(int signal, siginfo_t *info, void *context, const struct sigaction *previous)
{
	if (previous->sa_flags & SA_SIGINFO) {
		previous->sa_sigaction(signal, info, context);
	} else if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN) {
		previous->sa_handler(signal);
	} else if (info->si_code > 0 || previous->sa_handler == SIG_DFL) {
		/* The faulting instruction runs again and terminates the process; a signal that was sent is raised again. */
		struct sigaction standard = { .sa_handler = SIG_DFL };

		sigaction(signal, &standard, NULL);
		if (info->si_code <= 0)
			raise(signal);
	}
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	/* A positive code means that the kernel raised the signal for an instruction of this thread. */
	if (fault_jump != NULL && info->si_code > 0) {
		/* A handler that passed the signal on to us may have it blocked. */
		sigset_t set;

		sigemptyset(&set);
		sigaddset(&set, signal);
		pthread_sigmask(SIG_UNBLOCK, &set, NULL);
		siglongjmp(*fault_jump, 1);
	}
	for (size_t i = 0; i < RTE_DIM(faults); i++)
		if (faults[i].signal == signal)
			pass_on(signal, info, context, &faults[i].previous);
}

static int guard_error;

static void install_guard(void)
{
	/* SA_NODEFER: the handler of a guarded burst jumps out and never returns. */
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

	for (size_t i = 0; i < RTE_DIM(faults) && guard_error == 0; i++) {
		if (sigaction(faults[i].signal, NULL, &faults[i].previous) != 0 ||
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
	unsigned int previous = RTE_PER_LCORE(_lcore_id);
	uint32_t lcore = DPDK_SYS_NO_LCORE;

	/* DPDK binds lcores to threads; the lease outlives this thread and is used by other threads. */
	RTE_PER_LCORE(_lcore_id) = LCORE_ID_ANY;
	if (rte_thread_register() == 0)
		lcore = rte_lcore_id();
	restore_lcore(previous);
	return lcore;
}

void dpdk_sys_return_lcore(uint32_t lcore)
{
	unsigned int previous = RTE_PER_LCORE(_lcore_id);

	RTE_PER_LCORE(_lcore_id) = lcore;
	rte_thread_unregister();
	restore_lcore(previous);
}

struct listing {
	struct dpdk_sys_frame *frames;
	uint32_t max;
};

static void list_one(struct rte_mempool *pool, void *argument, void *object, unsigned int index)
{
	struct listing *listing = argument;
	struct rte_mbuf *mbuf = object;
	/* The buffer's current data offset may differ from that of its next allocation. */
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

/* A thread requests that the interrupt thread is blocked; it is. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool requested, blocked;
} hold = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

#define HOLD_TIMEOUT_S 1

/* Alarm callback, which runs on the interrupt thread. Returns at once if the request has ended. */
static void block_thread(void *argument)
{
	(void)argument;
	pthread_mutex_lock(&hold.lock);
	while (hold.requested) {
		hold.blocked = true;
		pthread_cond_broadcast(&hold.changed);
		pthread_cond_wait(&hold.changed, &hold.lock);
	}
	hold.blocked = false;
	pthread_cond_broadcast(&hold.changed);
	pthread_mutex_unlock(&hold.lock);
}

int dpdk_sys_hold_interrupts(void)
{
	struct timespec until;
	bool blocked;
	int error;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += HOLD_TIMEOUT_S;
	pthread_mutex_lock(&hold.lock);
	hold.requested = true;
	error = rte_eal_alarm_set(1, block_thread, NULL);
	while (!hold.blocked && error == 0)
			error = -pthread_cond_timedwait(&hold.changed, &hold.lock, &until);
	blocked = hold.blocked;
	hold.requested = blocked;
	pthread_mutex_unlock(&hold.lock);
	return blocked ? 0 : error;
}

void dpdk_sys_release_interrupts(void)
{
	pthread_mutex_lock(&hold.lock);
	hold.requested = false;
	pthread_cond_broadcast(&hold.changed);
	while (hold.blocked)
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

/* Target of DPDK's log. The stream is created once and kept: any thread may be using it at any time. */
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
			/* Unbuffered: DPDK writes a message in one call, so each call of the sink is one message. */
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

#define _GNU_SOURCE /* fopencookie */

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include <rte_lcore.h>
#include <rte_mempool.h>
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

uint16_t dpdk_sys_rx_burst(uint16_t port, uint16_t queue, struct dpdk_sys_frame *frames, uint16_t max,
			   uint64_t *refused)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	uint16_t got = rte_eth_rx_burst(port, queue, mbufs, at_most_a_burst(max));
	uint16_t kept = 0;

	for (uint16_t i = 0; i < got; i++) {
		if (unlikely(mbufs[i]->nb_segs != 1)) {
			rte_pktmbuf_free(mbufs[i]);
			*refused += 1;
			continue;
		}
		describe(&frames[kept++], mbufs[i]);
	}
	return kept;
}

uint16_t dpdk_sys_tx_burst(uint16_t port, uint16_t queue, const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];

	count = at_most_a_burst(count);
	for (uint16_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = frames[i].mbuf;

		mbuf->data_len = (uint16_t)frames[i].len_bytes;
		mbuf->pkt_len = frames[i].len_bytes;
		mbufs[i] = mbuf;
	}
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

uint16_t dpdk_sys_alloc_bulk(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];

	count = at_most_a_burst(count);
	if (rte_pktmbuf_alloc_bulk(pool, mbufs, count) != 0)
		return 0;
	for (uint16_t i = 0; i < count; i++)
		describe(&frames[i], mbufs[i]);
	return count;
}

void dpdk_sys_free_bulk(const struct dpdk_sys_frame *frames, uint16_t count)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];

	count = at_most_a_burst(count);
	for (uint16_t i = 0; i < count; i++)
		mbufs[i] = frames[i].mbuf;
	rte_pktmbuf_free_bulk(mbufs, count);
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
		/* DPDK flushes after each message, so that one call of the sink is one message. */
		log_to.stream = fopencookie(NULL, "w", functions);
		if (log_to.stream == NULL)
			error = -errno;
	}
	if (error == 0) {
		log_to.sink = sink;
		log_to.context = context;
		rte_openlog_stream(sink != NULL ? log_to.stream : NULL);
	}
	pthread_mutex_unlock(&log_to.lock);
	return error;
}

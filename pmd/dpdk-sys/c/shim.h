/*
 * What a port calls of DPDK, as functions that exist in a library: DPDK has its data path in inline functions.
 * Each call does a whole burst, so that crossing the language costs nothing per frame, and frames are described by
 * flat records, so that the caller knows no layout of DPDK's.
 *
 * A frame here is one buffer (struct rte_mbuf) of one piece; its bytes begin with the destination address and end
 * before the FCS.
 */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_version.h>

/** The frames of one burst, at most; of a longer array only so many are looked at. */
#define DPDK_SYS_BURST_MAX 64

/** One buffer and where its bytes are. */
struct dpdk_sys_frame {
	/** The buffer; DPDK's name for it in every call. */
	struct rte_mbuf *mbuf;
	/** Where the frame begins, or is to be written. */
	uint8_t *data;
	/** Bytes of the frame: set by dpdk_sys_rx_burst, read by dpdk_sys_tx_burst, else 0. */
	uint32_t len_bytes;
	/** Bytes from data to the end of the buffer. */
	uint32_t room_bytes;
};

/**
 * Takes received frames from a queue of a started port, oldest first. They belong to the caller until
 * dpdk_sys_free_bulk or dpdk_sys_tx_burst. A frame in several pieces is freed, and added to *refused.
 * One thread at a time for each queue.
 *
 * @param frames room for max records.
 * @param refused a sum that goes on; not NULL.
 * @return how many records were written: 0 to max, and fewer than are waiting at times.
 */
uint16_t dpdk_sys_rx_burst(uint16_t port, uint16_t queue, struct dpdk_sys_frame *frames, uint16_t max,
			   uint64_t *refused);

/**
 * Gives frames to a queue of a started port. len_bytes of each is at most its room_bytes. Those that were taken
 * belong to the driver, which gives them back to their pool, at once or later; the others stay the caller's.
 * One thread at a time for each queue.
 *
 * @return how many were taken, from the front.
 */
uint16_t dpdk_sys_tx_burst(uint16_t port, uint16_t queue, const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Takes empty buffers from a pool. They belong to the caller until dpdk_sys_free_bulk or dpdk_sys_tx_burst.
 *
 * @return how many records were written: count, or 0 when the pool has fewer.
 */
uint16_t dpdk_sys_alloc_bulk(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint16_t count);

/** Gives buffers back to the pools that they came from. */
void dpdk_sys_free_bulk(const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Lists all buffers of a pool, lent or not, as dpdk_sys_alloc_bulk would lend them. This tells where they are, and
 * lends none. They lie at multiples of a cache line, but not always equally far apart, nor in ascending order.
 *
 * @param frames room for max records.
 * @return how many buffers the pool has; at most max records were written.
 */
uint32_t dpdk_sys_pool_frames(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint32_t max);

/** The calling thread's rte_errno: why its last failed call failed. */
int dpdk_sys_errno(void);

/** The calling thread's lcore, or UINT32_MAX if it has none: then pools do without a cache for it. */
uint32_t dpdk_sys_lcore_id(void);

/**
 * Takes one message of DPDK's log.
 *
 * @param level RTE_LOG_EMERG to RTE_LOG_DEBUG.
 * @param text not terminated; ends with a line feed as a rule.
 */
typedef void (*dpdk_sys_log_sink)(void *context, int level, const char *text, size_t bytes);

/**
 * Has DPDK's log told to sink, from now on and instead of to an earlier one, also before rte_eal_init. The sink is
 * called by whichever thread logs, by one at a time, and neither logs nor calls this. NULL: the log goes where DPDK
 * sends it by itself. An earlier sink and its context are not used any more when this returns.
 *
 * @return 0, or a negative errno; then nothing has changed.
 */
int dpdk_sys_log_to(dpdk_sys_log_sink sink, void *context);

#endif

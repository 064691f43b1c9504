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
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_version.h>

/** The frames of one burst, at most; of a longer array only so many are looked at. */
#define DPDK_SYS_BURST_MAX 64

/** No lcore: the caller's thread is what it is to DPDK. */
#define DPDK_SYS_NO_LCORE UINT32_MAX

/** Whose bursts these are: one for each port, used by one thread at a time. */
struct dpdk_sys_caller {
	/** Bursts run as this lcore, with its caches; from dpdk_sys_lease_lcore, or DPDK_SYS_NO_LCORE. */
	uint32_t lcore;
	/**
	 * Not 0: a burst that touches memory which is not there is given up, instead of the process. Only after
	 * dpdk_sys_guard, and for drivers whose bursts hold no lock.
	 */
	uint32_t guarded;
	/** Frames in several pieces that were received and freed. A sum that goes on. */
	uint64_t refused;
	/** Bursts that were given up. A sum that goes on. */
	uint64_t given_up;
};

/** One buffer and where its bytes are. */
struct dpdk_sys_frame {
	/** The buffer; DPDK's name for it in every call. */
	struct rte_mbuf *mbuf;
	/** Where the frame begins, or is to be written; at most 65535 bytes behind the buffer's beginning. */
	uint8_t *data;
	/** Bytes of the frame: set by dpdk_sys_rx_burst, read by dpdk_sys_tx_burst, else 0. */
	uint32_t len_bytes;
	/** Bytes from data to the end of the buffer. */
	uint32_t room_bytes;
};

/**
 * Takes received frames from a queue of a started port, oldest first. They belong to the caller until
 * dpdk_sys_free_bulk or dpdk_sys_tx_burst. A frame in several pieces is freed, and added to caller->refused.
 * One thread at a time for each queue. A burst that is given up returns 0, and the buffers that the driver had in
 * hands are neither the caller's nor in their pool.
 *
 * @param frames room for max records.
 * @param max best 32: some drivers round it down to what they like, to nothing even.
 * @return how many records were written: 0 to max, and fewer than are waiting at times.
 */
uint16_t dpdk_sys_rx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   struct dpdk_sys_frame *frames, uint16_t max);

/**
 * Gives frames to a queue of a started port: of each, len_bytes bytes at data, which lie in the buffer. Those that
 * were taken belong to the driver, which gives them back to their pool, at once or later; the others stay the
 * caller's. One thread at a time for each queue. A burst that is given up counts as taken: some of its buffers are in
 * their pool, the others are nobody's.
 *
 * @return how many were taken, from the front.
 */
uint16_t dpdk_sys_tx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Takes empty buffers from a pool. They belong to the caller until dpdk_sys_free_bulk or dpdk_sys_tx_burst.
 *
 * @return how many records were written: count, or 0 when the pool has fewer.
 */
uint16_t dpdk_sys_alloc_bulk(const struct dpdk_sys_caller *caller, struct rte_mempool *pool,
			     struct dpdk_sys_frame *frames, uint16_t count);

/** Gives buffers back to the pools that they came from. */
void dpdk_sys_free_bulk(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Gives buffers back that are nobody's since a burst was given up, whatever is in them. None of them is in the pool,
 * or a driver's.
 */
void dpdk_sys_recover(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Makes guarded bursts possible: handles SIGSEGV and SIGBUS from now on, and passes on those that no guarded burst
 * caused to what handled them when this was called first. A thread that blocks these signals has no guard.
 *
 * @return 0, or a negative errno.
 */
int dpdk_sys_guard(void);

/**
 * Leases an lcore for bursts, which one thread at a time may run as. EAL runs, and is told that no other process will
 * join it.
 *
 * @return the lcore, or DPDK_SYS_NO_LCORE when all are taken.
 */
uint32_t dpdk_sys_lease_lcore(void);

/** Gives a leased lcore back. */
void dpdk_sys_return_lcore(uint32_t lcore);

/**
 * Lists all buffers of a pool, lent or not, as dpdk_sys_alloc_bulk would lend them. This tells where they are, and
 * lends none. They lie at multiples of a cache line, but not always equally far apart, nor in ascending order.
 *
 * @param frames room for max records.
 * @return how many buffers the pool has; at most max records were written.
 */
uint32_t dpdk_sys_pool_frames(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint32_t max);

/**
 * Keeps EAL's interrupt thread from running anything, until dpdk_sys_release_interrupts: what a driver does there and
 * what the caller does to its port come one after the other. EAL runs. One thread at a time; not from that thread.
 *
 * @return 0, or a negative errno; then it is not kept. -ETIMEDOUT: it is busy for a second, and may be for ever.
 */
int dpdk_sys_hold_interrupts(void);

/** Lets EAL's interrupt thread go on. */
void dpdk_sys_release_interrupts(void);

/** Is the link of a port up? Does not wait for it. 1 or 0; 0 also if the port does not exist. */
int dpdk_sys_link_is_up(uint16_t port);

/** The calling thread's rte_errno: why its last failed call failed. */
int dpdk_sys_errno(void);

/** The calling thread's lcore, or DPDK_SYS_NO_LCORE if it has none: then pools do without a cache for it. */
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

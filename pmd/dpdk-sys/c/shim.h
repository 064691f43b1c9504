/*
 * Functions with linkage for DPDK's data path, which DPDK has as inline functions. Each call does a whole burst, so
 * that the call costs little per frame, and frames are described by flat records, so that the caller does not depend
 * on DPDK's layouts.
 *
 * A frame here is one buffer (struct rte_mbuf) of one segment; its bytes begin with the destination address and end
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

/** Maximum number of frames of one burst; further entries of a longer array are ignored. */
#define DPDK_SYS_BURST_MAX 64

/** No lcore: calls use the lcore of the calling thread, if it has one. */
#define DPDK_SYS_NO_LCORE UINT32_MAX

/** Context of a port's bursts: one for each port, used by one thread at a time. */
struct dpdk_sys_caller {
	/** Bursts run as this lcore, with its caches; from dpdk_sys_lease_lcore, or DPDK_SYS_NO_LCORE. */
	uint32_t lcore;
	/**
	 * Not 0: a burst that faults (SIGSEGV, SIGBUS) is aborted, and the process survives. Only after dpdk_sys_guard,
	 * and for drivers whose bursts hold no lock.
	 */
	uint32_t guarded;
	/** Number of received frames of several segments, which were freed. Only grows. */
	uint64_t multi_segment_drops;
	/** Number of aborted bursts. Only grows. */
	uint64_t given_up;
};

/** One buffer and the address of its bytes. */
struct dpdk_sys_frame {
	/** The buffer, by which it is identified in every call. */
	struct rte_mbuf *mbuf;
	/** The beginning of the frame, or of a frame to be written; at most 65535 bytes behind the buffer's beginning. */
	uint8_t *data;
	/** Bytes of the frame: set by dpdk_sys_rx_burst, read by dpdk_sys_tx_burst, else 0. */
	uint32_t len_bytes;
	/** Bytes from data to the end of the buffer. */
	uint32_t room_bytes;
};

/**
 * Receives frames from a queue of a started port, oldest first. They belong to the caller until dpdk_sys_free_bulk or
 * dpdk_sys_tx_burst. A frame of several segments is freed and counted in caller->multi_segment_drops. One thread at a
 * time for each queue. An aborted burst returns 0, and the buffers that the driver was processing are lost: they
 * belong neither to the caller nor to their pool (see dpdk_sys_recover).
 *
 * @param frames array of max records.
 * @param max preferably 32: some drivers round it down to a multiple of their burst size, even to 0.
 * @return the number of records written: 0 to max; may be fewer than the pending frames.
 */
uint16_t dpdk_sys_rx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   struct dpdk_sys_frame *frames, uint16_t max);

/**
 * Sends frames on a queue of a started port: of each, len_bytes bytes at data, which lie in the buffer. Accepted frames
 * belong to the driver, which returns them to their pool, at once or later; the others stay with the caller. One thread
 * at a time for each queue. All frames of an aborted burst count as accepted: some of their buffers are in their pool,
 * the others are lost (see dpdk_sys_recover).
 *
 * @return the number of accepted frames, from the front.
 */
uint16_t dpdk_sys_tx_burst(struct dpdk_sys_caller *caller, uint16_t port, uint16_t queue,
			   const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Allocates empty buffers from a pool. They belong to the caller until dpdk_sys_free_bulk or dpdk_sys_tx_burst.
 *
 * @return the number of records written: count, or 0 if the pool has fewer buffers.
 */
uint16_t dpdk_sys_alloc_bulk(const struct dpdk_sys_caller *caller, struct rte_mempool *pool,
			     struct dpdk_sys_frame *frames, uint16_t count);

/** Returns buffers to their pools. */
void dpdk_sys_free_bulk(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Returns buffers that an aborted burst lost to their pools, and reinitializes them. None of them may be in the pool or
 * belong to a driver.
 */
void dpdk_sys_recover(const struct dpdk_sys_caller *caller, const struct dpdk_sys_frame *frames, uint16_t count);

/**
 * Enables guarded bursts: installs handlers of SIGSEGV and SIGBUS, which pass on signals that no guarded burst caused
 * to the handlers that were installed at the first call. A thread that blocks these signals has no guard.
 *
 * @return 0, or a negative errno.
 */
int dpdk_sys_guard(void);

/**
 * Leases an lcore for bursts, for one thread at a time. EAL runs, initialized without support of secondary processes.
 *
 * @return the lcore, or DPDK_SYS_NO_LCORE if all are in use.
 */
uint32_t dpdk_sys_lease_lcore(void);

/** Returns a leased lcore. */
void dpdk_sys_return_lcore(uint32_t lcore);

/**
 * Lists all buffers of a pool, allocated or not, with the records that dpdk_sys_alloc_bulk would return. Allocates none.
 * They lie at multiples of a cache line, but not always at equal distances, nor in ascending order.
 *
 * @param frames array of max records.
 * @return the number of buffers of the pool; at most max records were written.
 */
uint32_t dpdk_sys_pool_frames(struct rte_mempool *pool, struct dpdk_sys_frame *frames, uint32_t max);

/**
 * Blocks EAL's interrupt thread until dpdk_sys_release_interrupts, so that no callback of a driver runs there while the
 * caller controls its port. EAL runs. One thread at a time; not from the interrupt thread.
 *
 * @return 0, or a negative errno; then the thread is not blocked. -ETIMEDOUT: a callback has run for over a second.
 */
int dpdk_sys_hold_interrupts(void);

/** Unblocks EAL's interrupt thread. */
void dpdk_sys_release_interrupts(void);

/** Returns 1 if the link of a port is up, 0 if it is down or if the port does not exist. Does not wait. */
int dpdk_sys_link_is_up(uint16_t port);

/** Returns the calling thread's rte_errno, the error of its last failed call. */
int dpdk_sys_errno(void);

/** Returns the calling thread's lcore, or DPDK_SYS_NO_LCORE if it has none: then it uses no cache of a pool. */
uint32_t dpdk_sys_lcore_id(void);

/**
  * Receives one message of DPDK's log.
 *
 * @param level RTE_LOG_EMERG to RTE_LOG_DEBUG.
  * @param text not NUL-terminated; usually ends with a line feed.
 */
typedef void (*dpdk_sys_log_sink)(void *context, int level, const char *text, size_t bytes);

/**
 * Redirects DPDK's log to sink, which replaces an earlier one; also before rte_eal_init. The sink is called by the
 * logging thread, by one thread at a time, and must neither log nor call this. NULL: restores DPDK's default log. An
 * earlier sink and its context are not used any more when this returns.
 *
 * @return 0, or a negative errno; then nothing has changed.
 */
int dpdk_sys_log_to(dpdk_sys_log_sink sink, void *context);

#endif

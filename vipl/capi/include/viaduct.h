/*
 * viaduct.h - what this provider has beside the calls of the guide.
 *
 * A program needs none of it: vipl.h is the whole Virtual Interface Provider
 * Library. What is here makes programs faster that attach to a datapath
 * process.
 */
#ifndef VIADUCT_H
#define VIADUCT_H 1

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates at least so many bytes for VipRegisterMem: whole pages of zeros,
 * beginning with a page. A datapath process maps such memory and copies into
 * it and out of it; other memory it reaches by a system call for each frame.
 * In a program that polls for itself it is as good as any other.
 *
 * NULL on failure, and errno says why: EINVAL for no bytes, ENOMEM, EMFILE
 * (each allocation holds a file descriptor: allocate much at a time).
 *
 * After fork(2) parent and child see the same bytes: the memory is shared, and
 * what one writes the other reads.
 */
extern void *viaduct_alloc(size_t bytes);

/*
 * Frees what viaduct_alloc gave, whole; NULL is ignored. Deregister it first
 * (VipDeregisterMem, or VipCloseNic). A pointer that viaduct_alloc did not
 * give, or that was freed before, is told on standard error and left alone.
 * errno stays as it was.
 */
extern void viaduct_free(void *memory);

#ifdef __cplusplus
}
#endif

#endif /* VIADUCT_H */

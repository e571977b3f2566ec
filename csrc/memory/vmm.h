/* Device memory with handles: created, shared as descriptors, mapped. Thin over the driver's
 * virtual memory management; sizes are multiples of the granularity. */
#ifndef SMFAR_MEMORY_VMM_H
#define SMFAR_MEMORY_VMM_H

#include "../driver/driver.h"

typedef CUmemGenericAllocationHandle vmm_handle; /* 0 is none */

size_t vmm_round_up(size_t bytes, size_t granularity);

enum smfar_status vmm_granularity(struct driver *driver, CUdevice device, size_t *bytes_out);

/* Shareable memory on `device`, not mapped yet. */
enum smfar_status vmm_create(struct driver *driver, CUdevice device, size_t bytes,
                             vmm_handle *handle_out);
void vmm_release(struct driver *driver, vmm_handle handle);

/* A descriptor of the memory (or multicast object), the caller's to close; and back again: import
 * leaves the descriptor open. */
enum smfar_status vmm_export(struct driver *driver, vmm_handle handle, int *fd_out);
enum smfar_status vmm_import(struct driver *driver, int fd, vmm_handle *handle_out);

/* Address space without memory. */
enum smfar_status vmm_reserve(struct driver *driver, size_t bytes, CUdeviceptr *ptr_out);
void vmm_unreserve(struct driver *driver, CUdeviceptr ptr, size_t bytes);

/* Maps [offset, offset + bytes) of the memory at `ptr`, where address space is reserved, readable
 * and writable by `device`. */
enum smfar_status vmm_map(struct driver *driver, vmm_handle handle, size_t offset, size_t bytes,
                          CUdevice device, CUdeviceptr ptr);
void vmm_unmap(struct driver *driver, CUdeviceptr ptr, size_t bytes);

/* The memory that is mapped at `ptr`, whoever has created it: where its mapping begins, how long it
 * is, and a handle to release. SMFAR_ERR_UNSUPPORTED, with what would do, when it cannot be
 * shared; SMFAR_ERR_ARGUMENT when it is another device's. */
enum smfar_status vmm_find(struct driver *driver, CUdevice device, CUdeviceptr ptr,
                           CUdeviceptr *base_out, size_t *bytes_out, vmm_handle *handle_out);

/* 1 when `ptr` is ordinary host memory (a device that reports pageable memory access can use it).
 */
int vmm_is_host_memory(struct driver *driver, CUdeviceptr ptr);

#endif

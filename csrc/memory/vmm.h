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

/* Maps [offset, offset + bytes) of the memory, readable and writable by `device`. */
enum smfar_status vmm_map(struct driver *driver, vmm_handle handle, size_t offset, size_t bytes,
                          CUdevice device, CUdeviceptr *ptr_out);
void vmm_unmap(struct driver *driver, CUdeviceptr ptr, size_t bytes);

/* 1 when `ptr` is ordinary host memory (a device that reports pageable memory access can use it).
 */
int vmm_is_host_memory(struct driver *driver, CUdeviceptr ptr);

#endif

// See stream.h.
#include "stream.h"

#include <dlfcn.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

namespace smfar {

c10::Stream currentStream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

namespace {

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 11

smfar_stream rawHandle(c10::Device device) { return currentStream(device).native_handle(); }

#else

// Before torch 2.11 a c10::Stream does not give its handle; libtorch_cuda's C interface does.
smfar_stream rawHandle(c10::Device device) {
  using Function = int32_t (*)(int32_t device_index, void** stream_out);
  static const auto function =
      reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
  TORCH_CHECK(function, "smfar: this torch has no aoti_torch_get_current_cuda_stream");
  void* handle = nullptr;
  TORCH_CHECK(function(device.index(), &handle) == 0, "smfar: no current stream on ", device);
  return handle;
}

#endif

// The default stream's handle is null, which to the core means its own stream; the driver has
// another name for the default stream, CU_STREAM_LEGACY.
smfar_stream const kDefaultStream = reinterpret_cast<smfar_stream>(0x1);

} // namespace

smfar_stream currentHandle(c10::Device device) {
  smfar_stream handle = rawHandle(device);
  return handle ? handle : kDefaultStream;
}

// c10's CUDA streams that PyTorch did not make have the handle itself as their id.
c10::Stream externalStream(c10::Device device, smfar_stream handle) {
  return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(handle));
}

bool isCapturing(smfar_stream handle) {
  using Function = int (*)(void* stream, int* status_out);
  static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  static const auto function =
      library ? reinterpret_cast<Function>(dlsym(library, "cuStreamIsCapturing")) : nullptr;
  int status = 0;
  return function && function(handle, &status) == 0 && status != 0;
}

bool cudaPresent() {
  return c10::impl::hasDeviceGuardImpl(c10::kCUDA) &&
         c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() > 0;
}

} // namespace smfar

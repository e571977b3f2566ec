// The current CUDA stream as c10 knows it and as the driver knows it, with no CUDA header: through
// c10's device-agnostic classes. Only called when CUDA tensors are in play.
#pragma once

#include <c10/core/Stream.h>

#include "../smfar.h"

namespace smfar {

c10::Stream currentStream(c10::Device device);

// The CUstream behind the current stream of `device`.
smfar_stream currentHandle(c10::Device device);

// A stream that PyTorch did not make, as c10 represents it.
c10::Stream externalStream(c10::Device device, smfar_stream handle);

// Is a graph being captured on this stream?
bool isCapturing(smfar_stream handle);

bool cudaPresent();

} // namespace smfar

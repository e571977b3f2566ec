// What a wrong call throws. In Python it is a ValueError, as NCCL's group would raise, and a
// RuntimeError, as gloo's would: smfar.ArgumentError.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace smfar {

class ArgumentError : public c10::ValueError {
  using ValueError::ValueError;
};

} // namespace smfar

#define SMFAR_CHECK_ARGUMENT(condition, ...)                                                       \
  if (C10_UNLIKELY(!(condition))) {                                                                \
    throw ::smfar::ArgumentError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},            \
                                 ::c10::str(__VA_ARGS__));                                         \
  }

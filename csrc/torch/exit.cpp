// See exit.h.
#include "exit.h"

#include <Python.h>
#include <unistd.h>

#include <exception>

namespace smfar {

namespace {

std::terminate_handler before = nullptr;

bool isFinalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// No exception is on its way when a thread is being ended from inside. The first thread is not: it
// ends the process.
void stayAtExit() {
  if (gettid() != getpid() && isFinalizing() && !std::current_exception()) {
    while (true)
      pause();
  }
  if (before) before();
}

} // namespace

void keepQuietAtExit() {
  if (!before) before = std::set_terminate(stayAtExit);
}

} // namespace smfar

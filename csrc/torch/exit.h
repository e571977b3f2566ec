// Daemon threads that are inside a collective when the interpreter ends.
//
// Until Python 3.13 a thread that asks for the interpreter again after that is ended on the spot.
// PyTorch's bindings ask from a destructor, through which no thread can be ended: C++ aborts the
// process, whose work was done.
#pragma once

namespace smfar {

// From now on such a thread stands still instead, as it does in later versions of Python.
void keepQuietAtExit();

} // namespace smfar

#pragma once

#include <Python.h>

namespace sim {

// Lets go of Python's lock, if this thread holds it, for as long as the host waits.
//
// Some callers hold it while they call an op (DTensor's dispatch), and the thread of a
// stream may need it to run a kernel that is written in Python.
class ReleaseGil {
 public:
  ReleaseGil() {
    if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
  }
  ~ReleaseGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace sim

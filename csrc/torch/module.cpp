// The Python module smfar._C: options, the process group, and what it can tell. Arguments are
// checked and documented in smfar/*.py; here they are only passed on.
#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <torch/version.h>

#include "exit.h"
#include "ops.h"
#include "plain_loop.h"
#include "pool.h"
#include "process_group.h"
#include "registered.h"

namespace py = pybind11;

namespace smfar {

namespace {

using Group = ProcessGroupSmfar;
using GroupPtr = c10::intrusive_ptr<Group>;
using OptionsPtr = c10::intrusive_ptr<OptionsSmfar>;
using GilReleased = py::call_guard<py::gil_scoped_release>;

constexpr size_t kTextBytes = 8192, kPathBytes = 4096;

constexpr const char* kOptionsDoc = R"(What a group may choose; `pg_options` of init_process_group.

Every rank should pass the same; the smallest sm_budget, any multicast=False or copy_engines=False, and
any deterministic=True count for all.
None means the default.

Args:
    sm_budget: most thread blocks that a kernel may use.
    multicast: False never uses the switch's multicast.
    timeout: datetime.timedelta, the deadline of every wait; default: the group's own.
    window_bytes: device memory per rank for smfar.empty and staging; default 256 MiB.
    deterministic: True sums in rank order, never in the switch: equal to the bit from run to run, for
        any budget and wherever tensors lie. torch.use_deterministic_algorithms(True) does the same
        for the calls that follow; it must be on for all ranks or for none.
    copy_engines: True takes no SM for all-gathers, broadcasts, all-to-alls, scatters and gathers of
        1 MiB and more for each rank: streams wait, copy engines bring data straight into outputs in the
        window, and the call blocks the host until every rank has called. See smfar.sm_budget(0).
    plan_table: file of measured choices, as `python -m smfar tune` writes it (docs/plan.md); rank 0's
        counts for all. "0": none. Default: SMFAR_PLAN_TABLE, else smfar/plan_table in
        XDG_CONFIG_HOME (or in HOME's .config) if it is there.
)";

OptionsPtr makeOptions(std::optional<int> sm_budget, std::optional<bool> multicast,
                       std::optional<milliseconds> timeout, std::optional<int64_t> window_bytes,
                       bool deterministic, bool copy_engines,
                       const std::optional<std::string>& plan_table) {
  SMFAR_CHECK_ARGUMENT(!sm_budget || *sm_budget > 0, "smfar: sm_budget must be positive");
  SMFAR_CHECK_ARGUMENT(!window_bytes || *window_bytes > 0, "smfar: window_bytes must be positive");
  SMFAR_CHECK_ARGUMENT(!timeout || timeout->count() > 0, "smfar: timeout must be positive");
  auto options = c10::make_intrusive<OptionsSmfar>(timeout.value_or(kBackendDefaultTimeout));
  options->timeout_given = timeout.has_value();
  options->sm_budget = sm_budget.value_or(0);
  options->multicast = multicast.value_or(true);
  options->window_bytes = window_bytes.value_or(0);
  options->deterministic = deterministic;
  options->copy_engines = copy_engines;
  options->plan_table = plan_table.value_or("");
  return options;
}

OptionsPtr copyOptions(const OptionsSmfar& options) {
  return c10::make_intrusive<OptionsSmfar>(options);
}

GroupPtr makeGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                   milliseconds timeout, const OptionsPtr& asked) {
  auto options = asked ? copyOptions(*asked) : c10::make_intrusive<OptionsSmfar>();
  if (!options->timeout_given) options->timeout = timeout;
  return c10::make_intrusive<Group>(store, rank, size, options);
}

std::shared_ptr<Communicator> madeFor(Group& group, const at::Device& device) {
  auto communicator = group.existing(device.type());
  if (!communicator) group.checkNotEnded();
  TORCH_CHECK_WITH(DistBackendError, communicator, "smfar: this group has not used ", device.type(),
                   " yet: its communicator is made at the first collective");
  communicator->checkProcess();
  return communicator;
}

at::Tensor empty(Group& group, const std::vector<int64_t>& sizes, at::ScalarType dtype,
                 const at::Device& device) {
  return windowTensor(group.communicator(device), sizes, at::device(device).dtype(dtype));
}

void reserve(Group& group, const at::Device& device, size_t bytes) {
  check(smfar_window_reserve(group.communicator(device)->raw(), bytes),
        c10::str("reserving ", bytes, " bytes of the window"));
}

std::shared_ptr<Registered> registerTensor(Group& group, const at::Tensor& tensor) {
  checkTensor(tensor, "register");
  SMFAR_CHECK_ARGUMENT(tensor.is_non_overlapping_and_dense(),
                       "smfar: register: got a tensor with gaps in its memory; register the whole");
  return Registered::add(group.communicator(tensor.device()), tensor);
}

int openPoolOf(Group& group, const at::Device& device, size_t bytes) {
  return openPool(group.communicator(device), bytes);
}

// Under the names that ProcessGroupNCCL has.
void registerPool(const py::object& group, const py::object& pool, bool) {
  py::module::import("smfar.pool").attr("register")(group, pool);
}

std::tuple<size_t, size_t> poolUse(int number) {
  const PoolUse use = usePool(number);
  return {use.capacity, use.taken};
}

std::string explain(Group& group, const at::Device& device, const std::optional<at::Tensor>& tensor,
                    int64_t count, at::ScalarType dtype, const c10d::ReduceOp& op) {
  auto communicator = madeFor(group, device);
  const at::Tensor plain = tensor ? *tensor : at::empty({0}, at::device(device).dtype(dtype));
  Flat flat = flatNumbers(plain);
  if (!tensor) flat.count = count;
  std::string text(kTextBytes, '\0');
  smfar_fixed_order(at::globalContext().deterministicAlgorithms());
  check(smfar_explain(communicator->raw(), flat.pointer, flat.count, flat.dtype, reduceOp(op),
                      text.data(), text.size()),
        "explain");
  return text.c_str();
}

void setHint(int sm_budget, const std::optional<std::string>& algorithm) {
  const smfar_hint hint{sm_budget, algorithm ? algorithm->c_str() : nullptr};
  check(smfar_hint_set(&hint), "hint");
}

std::string describe(Group& group, const at::Device& device) {
  auto communicator = madeFor(group, device);
  std::string text(kTextBytes, '\0');
  check(smfar_comm_describe(communicator->raw(), text.data(), text.size()), "describe");
  return text.c_str();
}

std::string planTablePlace() {
  std::string path(kPathBytes, '\0');
  check(smfar_plan_table_place(path.data(), path.size()), "plan table");
  return path.c_str();
}

void checkPlanTable(const std::string& path) {
  check(smfar_plan_table_check(path.c_str()), "plan table");
}

// The fields of smfar.Path.
using PathTuple =
    std::tuple<std::string, std::string, std::string, uint64_t, uint64_t, uint64_t, int, int>;

std::vector<PathTuple> paths(Group& group, const at::Device& device) {
  auto communicator = madeFor(group, device);
  std::vector<PathTuple> found;
  smfar_path path{};
  for (int i = 0; smfar_comm_path(communicator->raw(), i, &path) == SMFAR_OK; i++) {
    found.emplace_back(path.collective, path.algorithm, path.reason, path.calls, path.bytes,
                       path.staged_bytes, path.blocks, path.threads);
  }
  return found;
}

void plainLoop(const std::vector<at::Tensor>& copies, size_t rank, const at::Tensor& barrier) {
  std::vector<float*> pointers;
  for (const at::Tensor& copy : copies)
    pointers.push_back(copy.data_ptr<float>());
  plainAllReduce(pointers, static_cast<size_t>(copies.front().numel()), rank,
                 *static_cast<SpinBarrier*>(barrier.data_ptr()));
}

// What ArgumentError is in Python: found once, never given back.
PyObject* argumentError() {
  static PyObject* const type =
      py::object(py::module::import("smfar.errors").attr("ArgumentError")).release().ptr();
  return type;
}

void bindErrors() {
  argumentError();
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ArgumentError& error) {
      PyErr_SetString(argumentError(), error.what_without_backtrace());
    }
  });
}

void bindOptions(py::module& module) {
  py::class_<OptionsSmfar, c10d::Backend::Options, OptionsPtr>(module, "Options", kOptionsDoc)
      .def(py::init(&makeOptions), py::kw_only(), py::arg("sm_budget") = py::none(),
           py::arg("multicast") = py::none(), py::arg("timeout") = py::none(),
           py::arg("window_bytes") = py::none(), py::arg("deterministic") = false,
           py::arg("copy_engines") = false, py::arg("plan_table") = py::none())
      .def_readonly("sm_budget", &OptionsSmfar::sm_budget)
      .def_readonly("multicast", &OptionsSmfar::multicast)
      .def_readonly("window_bytes", &OptionsSmfar::window_bytes)
      .def_readonly("deterministic", &OptionsSmfar::deterministic)
      .def_readonly("copy_engines", &OptionsSmfar::copy_engines)
      .def_readonly("plan_table", &OptionsSmfar::plan_table)
      .def_property_readonly("timeout", [](const OptionsSmfar& self) { return self.timeout; })
      .def("__copy__", &copyOptions)
      .def("__deepcopy__",
           [](const OptionsSmfar& self, const py::dict&) { return copyOptions(self); });
}

void bindGroup(py::module& module) {
  py::class_<Registered, std::shared_ptr<Registered>>(module, "Registered")
      .def("drop", &Registered::drop, GilReleased());
  py::class_<Group, c10d::Backend, GroupPtr>(module, "ProcessGroupSmfar")
      .def_property_readonly("options", &Group::getBackendOptions)
      // what ranks outside a split group call: it needs nothing of them
      .def("perform_nocolor_split", [](Group&, const at::Device&) {})
      .def("_empty", &empty, GilReleased())
      .def("_reserve", &reserve, GilReleased())
      .def("_register", &registerTensor, GilReleased())
      .def("_open_pool", &openPoolOf, GilReleased())
      .def("register_mem_pool", &registerPool, py::arg("pool"), py::arg("symm") = false)
      .def("deregister_mem_pool", &registerPool, py::arg("pool"), py::arg("symm") = false)
      .def("_explain", &explain, GilReleased())
      .def("_describe", &describe, GilReleased())
      .def("_paths", &paths, GilReleased());
}

} // namespace

} // namespace smfar

PYBIND11_MODULE(_C, module) {
  py::module::import("torch._C._distributed_c10d"); // defines the base classes
  module.attr("torch_version") = py::make_tuple(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
  module.attr("WHOLE_BYTES") = static_cast<int>(SMFAR_WHOLE_BYTES);
  module.def("core_version", &smfar_version);
  module.def("plan_table_place", &smfar::planTablePlace);
  module.def("check_plan_table", &smfar::checkPlanTable, smfar::GilReleased());
  smfar::keepQuietAtExit();
  smfar::bindErrors();
  smfar::bindOptions(module);
  smfar::bindGroup(module);
  module.def("make_group", &smfar::makeGroup, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("options") = py::none());
  module.def("all_reduce_now", &smfar::allReduceNow, smfar::GilReleased());
  module.def("set_hint", &smfar::setHint);
  module.def("close_pool", &smfar::closePool, smfar::GilReleased());
  module.def("pool_use", &smfar::poolUse);
  module.def("plain_loop", &smfar::plainLoop, smfar::GilReleased());
}

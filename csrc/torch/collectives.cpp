// The collectives as c10d calls them: tensors are checked, become pointers and counts, and one
// call, or one per tensor, of the core. See process_group.h.
#include "process_group.h"

#include "buffers.h"
#include "calls.h"
#include "stream.h"

namespace smfar {

using Group = ProcessGroupSmfar;
using Tensors = Group::Tensors;
using WorkPtr = Group::WorkPtr;
using c10d::OpType;

void Group::checkRoot(int64_t root, const char* collective) const {
  SMFAR_CHECK_ARGUMENT(root >= 0 && root < size_, "smfar: ", collective, ": root rank ", root,
                       " is not in 0..", size_ - 1);
}

// ---- reductions ----

WorkPtr Group::reduceAll(const Tensors& tensors, const c10d::AllreduceOptions& options,
                         OpType type) {
  const Names names{type, "all_reduce", "smfar:all_reduce"};
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  Buffers buffers(names.name);
  std::vector<Flat> flats;
  for (const at::Tensor& tensor : tensors)
    flats.push_back(flatNumbers(buffers.update(tensor)));
  return launch(
      planOf(names, tensors, tensors, options.asyncOp, buffers),
      [&](smfar_comm* comm, smfar_stream stream) {
        for (const Flat& flat : flats) {
          void* const data = flat.pointer;
          check(
              op == SMFAR_PREMUL_SUM
                  ? smfar_all_reduce_scaled(data, data, flat.count, flat.dtype, scale, comm, stream)
                  : smfar_all_reduce(data, data, flat.count, flat.dtype, op, comm, stream),
              "all_reduce");
        }
      });
}

WorkPtr Group::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  SMFAR_CHECK_ARGUMENT(tensors.size() == 1, "smfar: all_reduce takes one tensor, not ",
                       tensors.size(), "; call it once per tensor, or all_reduce_coalesced");
  return reduceAll(tensors, options, OpType::ALLREDUCE);
}

WorkPtr Group::allreduce_coalesced(Tensors& tensors,
                                   const c10d::AllreduceCoalescedOptions& options) {
  SMFAR_CHECK_ARGUMENT(!tensors.empty(), "smfar: all_reduce_coalesced: got no tensors");
  for (const at::Tensor& tensor : tensors) {
    SMFAR_CHECK_ARGUMENT(tensor.device() == tensors.front().device(),
                         "smfar: all_reduce_coalesced: got tensors on several devices");
  }
  return reduceAll(tensors, options, OpType::ALLREDUCE_COALESCED);
}

WorkPtr Group::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Names names{OpType::REDUCE, "reduce", "smfar:reduce"};
  const at::Tensor& tensor = theOne(tensors, names.name);
  checkRoot(options.rootRank, names.name);
  const int root = static_cast<int>(options.rootRank);
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  Buffers buffers(names.name);
  const Flat flat = flatNumbers(buffers.updateIf(root == rank_, tensor));
  return launch(planOf(names, tensors, tensors, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  check(smfar_reduce(flat.pointer, flat.pointer, flat.count, flat.dtype, op, scale,
                                     root, comm, stream),
                        names.name);
                });
}

WorkPtr Group::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                              const c10d::ReduceScatterOptions& options) {
  const Names names{OpType::REDUCE_SCATTER, "reduce_scatter", "smfar:reduce_scatter"};
  const at::Tensor& output = theOne(outputs, names.name);
  const Tensors& parts = theOneList(inputs, static_cast<size_t>(size_), names.name);
  if (sizesDiffer(parts)) return reduceUnequal(output, parts, options);
  checkAlike(joined(parts, output), names.name);
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  Buffers buffers(names.name);
  std::vector<void*> send;
  for (const at::Tensor& part : parts) {
    buffers.checkApart(output, part);
    send.push_back(flatNumbers(buffers.read(part)).pointer);
  }
  const Flat receive = flatNumbers(buffers.write(output));
  return launch(planOf(names, parts, outputs, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  check(smfar_reduce_scatter(readOnly(send), receive.pointer, receive.count,
                                             receive.dtype, op, scale, comm, stream),
                        names.name);
                });
}

WorkPtr Group::reduceUnequal(const at::Tensor& output, const Tensors& parts,
                             const c10d::ReduceScatterOptions& options) {
  const Names names{OpType::REDUCE_SCATTER, "reduce_scatter", "smfar:reduce_scatter"};
  checkOwn(parts, output, rank_, names.name, "input");
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  Buffers buffers(names.name);
  std::vector<void*> send;
  std::vector<size_t> counts;
  for (size_t root = 0; root < parts.size(); root++) {
    buffers.checkApart(output, parts[root]);
    const bool mine = root == static_cast<size_t>(rank_);
    const Flat part =
        flatNumbers(buffers.readBefore(mine ? Tensors{} : Tensors{output}, parts[root]));
    send.push_back(part.pointer);
    counts.push_back(part.count);
  }
  const Flat receive = flatNumbers(buffers.write(output));
  return launch(planOf(names, parts, {output}, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  check(smfar_reduce_scatter_v(readOnly(send), receive.pointer, counts.data(),
                                               receive.dtype, op, scale, comm, stream),
                        names.name);
                });
}

WorkPtr Group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                    const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduceScatter(outputs, inputs, options, OpType::_REDUCE_SCATTER_BASE);
}

WorkPtr Group::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                               const c10d::ReduceScatterOptions& options) {
  return reduceScatter(outputs, inputs, options, OpType::COALESCED);
}

WorkPtr Group::reduceScatter(const Tensors& outputs, const Tensors& inputs,
                             const c10d::ReduceScatterOptions& options, OpType type) {
  const Names names{type, "reduce_scatter_tensor", "smfar:reduce_scatter"};
  SMFAR_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(), "smfar: ", names.name,
                       ": got ", inputs.size(), " inputs and ", outputs.size(), " outputs");
  const smfar_op op = reduceOp(options.reduceOp);
  const double scale = scaleOf(options.reduceOp);
  Buffers buffers(names.name);
  std::vector<Flat> send, receive;
  for (size_t i = 0; i < inputs.size(); i++) {
    checkWhole(inputs[i], outputs[i], size_, names.name, "input");
    buffers.checkPart(inputs[i], outputs[i]);
    send.push_back(flatNumbers(buffers.read(inputs[i])));
    receive.push_back(flatNumbers(buffers.write(outputs[i])));
  }
  buffers.checkApart();
  return launch(planOf(names, inputs, outputs, options.asyncOp, buffers), [&](smfar_comm* comm,
                                                                              smfar_stream stream) {
    for (size_t i = 0; i < send.size(); i++) {
      check(smfar_reduce_scatter_from(send[i].pointer, receive[i].pointer, receive[i].count,
                                      receive[i].dtype, op, scale, comm, stream),
            names.name);
    }
  });
}

// ---- from one rank, or to one ----

WorkPtr Group::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Names names{OpType::BROADCAST, "broadcast", "smfar:broadcast"};
  const at::Tensor& tensor = theOne(tensors, names.name);
  checkRoot(options.rootRank, names.name);
  const int root = static_cast<int>(options.rootRank);
  Buffers buffers(names.name);
  const Flat flat = flatBytes(buffers.updateIf(root != rank_, tensor));
  return launch(planOf(names, tensors, tensors, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  check(smfar_broadcast(flat.pointer, flat.pointer, flat.count, flat.dtype, root,
                                        comm, stream),
                        names.name);
                });
}

WorkPtr Group::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                      const c10d::GatherOptions& options) {
  const Names names{OpType::GATHER, "gather", "smfar:gather"};
  const at::Tensor& input = theOne(inputs, names.name);
  checkRoot(options.rootRank, names.name);
  const int root = static_cast<int>(options.rootRank);
  SMFAR_CHECK_ARGUMENT(root == rank_ || outputs.empty(), "smfar: gather: rank ", rank_,
                       " is not the root ", root, " and must give no outputs");
  const Tensors parts =
      root == rank_ ? theOneList(outputs, static_cast<size_t>(size_), names.name) : Tensors();
  checkAlike(joined(parts, input), names.name);
  Buffers buffers(names.name);
  const Flat send = flatBytes(buffers.read(input));
  std::vector<void*> receive;
  for (const at::Tensor& part : parts) {
    buffers.checkApart(part, input);
    receive.push_back(flatBytes(buffers.write(part)).pointer);
  }
  buffers.checkApart();
  return launch(planOf(names, inputs, parts, options.asyncOp, buffers), [&](smfar_comm* comm,
                                                                            smfar_stream stream) {
    check(smfar_gather(send.pointer, receive.data(), send.count, send.dtype, root, comm, stream),
          names.name);
  });
}

WorkPtr Group::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ScatterOptions& options) {
  const Names names{OpType::SCATTER, "scatter", "smfar:scatter"};
  const at::Tensor& output = theOne(outputs, names.name);
  checkRoot(options.rootRank, names.name);
  const int root = static_cast<int>(options.rootRank);
  SMFAR_CHECK_ARGUMENT(root == rank_ || inputs.empty(), "smfar: scatter: rank ", rank_,
                       " is not the root ", root, " and must give no inputs");
  const Tensors parts =
      root == rank_ ? theOneList(inputs, static_cast<size_t>(size_), names.name) : Tensors();
  checkAlike(joined(parts, output), names.name);
  Buffers buffers(names.name);
  std::vector<void*> send;
  for (const at::Tensor& part : parts) {
    buffers.checkApart(output, part);
    send.push_back(flatBytes(buffers.read(part)).pointer);
  }
  const Flat receive = flatBytes(buffers.write(output));
  return launch(planOf(names, parts, outputs, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  check(smfar_scatter(readOnly(send), receive.pointer, receive.count, receive.dtype,
                                      root, comm, stream),
                        names.name);
                });
}

// ---- from every rank to every rank ----

WorkPtr Group::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                         const c10d::AllgatherOptions& options) {
  const at::Tensor& input = theOne(inputs, "all_gather");
  const Tensors& parts = theOneList(outputs, static_cast<size_t>(size_), "all_gather");
  if (sizesDiffer(parts)) return gatherUnequal(parts, input, options.asyncOp);
  std::vector<Tensors> by_input{parts};
  return gatherAll(by_input, inputs, options, OpType::ALLGATHER);
}

WorkPtr Group::gatherUnequal(const Tensors& parts, const at::Tensor& input, bool async) {
  const Names names{OpType::ALLGATHER, "all_gather", "smfar:all_gather"};
  checkOwn(parts, input, rank_, names.name, "output");
  Buffers buffers(names.name);
  Tensors others = parts;
  others.erase(others.begin() + rank_);
  const Flat send = flatBytes(buffers.readBefore(others, input));
  std::vector<void*> receive;
  std::vector<size_t> counts;
  for (const at::Tensor& part : parts) {
    buffers.checkApart(part, input);
    const Flat flat = flatBytes(buffers.write(part));
    receive.push_back(flat.pointer);
    counts.push_back(flat.count);
  }
  buffers.checkApart();
  return launch(planOf(names, {input}, parts, async, buffers), [&](smfar_comm* comm,
                                                                   smfar_stream stream) {
    check(smfar_all_gather_v(send.pointer, receive.data(), counts.data(), send.dtype, comm, stream),
          names.name);
  });
}

// c10d's lists are per rank here.
WorkPtr Group::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  SMFAR_CHECK_ARGUMENT(outputs.size() == static_cast<size_t>(size_),
                       "smfar: all_gather_coalesced: got ", outputs.size(),
                       " lists of outputs for ", size_, " ranks");
  std::vector<Tensors> by_input(inputs.size());
  for (const Tensors& of_rank : outputs) {
    SMFAR_CHECK_ARGUMENT(of_rank.size() == inputs.size(), "smfar: all_gather_coalesced: got ",
                         of_rank.size(), " outputs of a rank for ", inputs.size(), " inputs");
    for (size_t i = 0; i < inputs.size(); i++)
      by_input[i].push_back(of_rank[i]);
  }
  return gatherAll(by_input, inputs, options, OpType::COALESCED);
}

WorkPtr Group::gatherAll(const std::vector<Tensors>& outputs, const Tensors& inputs,
                         const c10d::AllgatherOptions& options, OpType type) {
  const Names names{type, "all_gather", "smfar:all_gather"};
  SMFAR_CHECK_ARGUMENT(!inputs.empty(), "smfar: all_gather: got no tensors");
  Buffers buffers(names.name);
  std::vector<Flat> send;
  std::vector<std::vector<void*>> receive(inputs.size());
  Tensors all;
  for (size_t i = 0; i < inputs.size(); i++) {
    checkAlike(joined(outputs[i], inputs[i]), names.name);
    send.push_back(flatBytes(buffers.read(inputs[i])));
    for (const at::Tensor& part : outputs[i]) {
      buffers.checkApart(part, inputs[i]);
      receive[i].push_back(flatBytes(buffers.write(part)).pointer);
      all.push_back(part);
    }
  }
  buffers.checkApart();
  return launch(planOf(names, inputs, all, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  for (size_t i = 0; i < send.size(); i++) {
                    check(smfar_all_gather(send[i].pointer, receive[i].data(), send[i].count,
                                           send[i].dtype, comm, stream),
                          names.name);
                  }
                });
}

WorkPtr Group::_allgather_base(at::Tensor& output, at::Tensor& input,
                               const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

WorkPtr Group::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllgatherOptions& options) {
  const Names names{OpType::_ALLGATHER_BASE, "all_gather_into_tensor", "smfar:all_gather"};
  SMFAR_CHECK_ARGUMENT(!inputs.empty() && outputs.size() == inputs.size(), "smfar: ", names.name,
                       ": got ", inputs.size(), " inputs and ", outputs.size(), " outputs");
  Buffers buffers(names.name);
  std::vector<Flat> send;
  std::vector<void*> receive;
  for (size_t i = 0; i < inputs.size(); i++) {
    checkWhole(outputs[i], inputs[i], size_, names.name, "output");
    buffers.checkPart(outputs[i], inputs[i]);
    send.push_back(flatBytes(buffers.read(inputs[i])));
    receive.push_back(flatBytes(buffers.write(outputs[i])).pointer);
  }
  buffers.checkApart();
  return launch(planOf(names, inputs, outputs, options.asyncOp, buffers),
                [&](smfar_comm* comm, smfar_stream stream) {
                  for (size_t i = 0; i < send.size(); i++) {
                    check(smfar_all_gather_into(send[i].pointer, receive[i], send[i].count,
                                                send[i].dtype, comm, stream),
                          names.name);
                  }
                });
}

// ---- all-to-all ----

namespace {

// How many elements go to or come from each rank, by rows of dimension 0.
std::vector<size_t> countsOf(const at::Tensor& tensor, const std::vector<int64_t>& rows, int ranks,
                             const char* which) {
  const int64_t total = tensor.dim() ? tensor.size(0) : 1;
  const size_t row = total ? static_cast<size_t>(tensor.numel() / total) * unitsOf(tensor) : 0;
  if (rows.empty()) {
    SMFAR_CHECK_ARGUMENT(total % ranks == 0, "smfar: all_to_all_single: the ", which, "'s ", total,
                         " rows do not divide by ", ranks, " ranks; give split sizes");
    return std::vector<size_t>(static_cast<size_t>(ranks),
                               static_cast<size_t>(total / ranks) * row);
  }
  SMFAR_CHECK_ARGUMENT(rows.size() == static_cast<size_t>(ranks), "smfar: all_to_all_single: got ",
                       rows.size(), " split sizes of the ", which, " for ", ranks, " ranks");
  std::vector<size_t> counts;
  int64_t sum = 0;
  for (const int64_t n : rows) {
    SMFAR_CHECK_ARGUMENT(n >= 0, "smfar: all_to_all_single: split size ", n, " is negative");
    counts.push_back(static_cast<size_t>(n) * row);
    sum += n;
  }
  SMFAR_CHECK_ARGUMENT(sum == total, "smfar: all_to_all_single: the split sizes of the ", which,
                       " add up to ", sum, ", not to its ", total, " rows");
  return counts;
}

std::vector<void*> pointersBy(const at::Tensor& tensor, const std::vector<size_t>& counts) {
  std::vector<void*> pointers;
  auto* at = static_cast<char*>(flatBytes(tensor).pointer);
  for (const size_t count : counts) {
    pointers.push_back(at);
    if (at) at += count * static_cast<size_t>(tensor.element_size()) / unitsOf(tensor);
  }
  return pointers;
}

} // namespace

WorkPtr Group::alltoall_base(at::Tensor& output, at::Tensor& input,
                             std::vector<int64_t>& output_rows, std::vector<int64_t>& input_rows,
                             const c10d::AllToAllOptions& options) {
  const Names names{OpType::ALLTOALL_BASE, "all_to_all_single", "smfar:all_to_all"};
  checkKind({input, output}, names.name);
  const auto send_counts = countsOf(input, input_rows, size_, "input");
  const auto receive_counts = countsOf(output, output_rows, size_, "output");
  Buffers buffers(names.name);
  buffers.checkApart(output, input);
  const smfar_dtype dtype = flatBytes(input).dtype;
  const auto send = pointersBy(buffers.read(input), send_counts);
  const auto receive = pointersBy(buffers.write(output), receive_counts);
  if (input_rows.empty() && output_rows.empty()) {
    SMFAR_CHECK_ARGUMENT(input.numel() == output.numel(),
                         "smfar: all_to_all_single: the input has ", input.numel(),
                         " elements and the output ", output.numel());
    return launch(planOf(names, {input}, {output}, options.asyncOp, buffers),
                  [&](smfar_comm* comm, smfar_stream stream) {
                    check(smfar_all_to_all(readOnly(send), receive.data(), send_counts.front(),
                                           dtype, comm, stream),
                          names.name);
                  });
  }
  Unequal parts{send, receive, send_counts, receive_counts, dtype};
  return exchangeUnequal(planOf(names, {input}, {output}, options.asyncOp, buffers), parts);
}

WorkPtr Group::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const Names names{OpType::ALLTOALL, "all_to_all", "smfar:all_to_all"};
  SMFAR_CHECK_ARGUMENT(inputs.size() == static_cast<size_t>(size_) &&
                           outputs.size() == inputs.size(),
                       "smfar: all_to_all: got ", inputs.size(), " inputs and ", outputs.size(),
                       " outputs for ", size_, " ranks");
  checkKind(inputs, names.name);
  checkKind(joined(outputs, inputs.front()), names.name);
  Buffers buffers(names.name);
  Unequal parts;
  parts.dtype = flatBytes(inputs.front()).dtype;
  for (const at::Tensor& input : inputs) {
    const Flat flat = flatBytes(buffers.read(input));
    parts.send.push_back(flat.pointer);
    parts.send_counts.push_back(flat.count);
  }
  for (const at::Tensor& output : outputs) {
    for (const at::Tensor& input : inputs)
      buffers.checkApart(output, input);
    const Flat flat = flatBytes(buffers.write(output));
    parts.receive.push_back(flat.pointer);
    parts.receive_counts.push_back(flat.count);
  }
  buffers.checkApart();
  return exchangeUnequal(planOf(names, inputs, outputs, options.asyncOp, buffers), parts);
}

WorkPtr Group::exchangeUnequal(WorkSmfar::Plan plan, const Unequal& parts) {
  TORCH_CHECK_NOT_IMPLEMENTED(!plan.device.is_cuda() || !isCapturing(currentHandle(plan.device)),
                              "smfar: ", plan.name,
                              " of parts with sizes of their own cannot be captured in a CUDA "
                              "graph: hosts compare the sizes; use all_to_all_single without "
                              "split sizes");
  return launch(std::move(plan), [&](smfar_comm* comm, smfar_stream stream) {
    check(smfar_all_to_all_v(readOnly(parts.send), parts.send_counts.data(), parts.receive.data(),
                             parts.receive_counts.data(), parts.dtype, comm, stream),
          "all_to_all");
  });
}

} // namespace smfar

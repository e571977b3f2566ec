"""Tests that the peer passes and smfar does not, each with its reason."""

MONITORED = "torch.distributed.monitored_barrier asks for gloo by name"
LOGGED = "DDP's log calls every backend that is not PyTorch's own `custom`"

GLOO = {
    "test_ddp_logging_data_cpu": LOGGED,
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
    "test_sparse_all_reduce_sum": "sparse tensors are refused on purpose",
}
NCCL = {
    "test_batch_isend_irecv_self_nccl": "a group's first call on GPUs, which this one is, has to "
    "be made by every rank, as torch.distributed says of batch_isend_irecv",
    "test_ddp_profiling_execution_trace": "asks for the name nccl",
}
EXCEPTIONS = {"gloo": GLOO, "nccl": NCCL}

# what smfar has no part in
ITSELF = "makes NCCL's group itself"
OF_NCCL = {
    "test_monitored_barrier_allreduce_hang": ITSELF,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": ITSELF,
    "test_nccl_high_priority_stream": ITSELF,
}

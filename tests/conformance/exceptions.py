"""Tests that gloo passes and smfar does not, each with its reason."""

MONITORED = "torch.distributed.monitored_barrier asks for gloo by name"

EXCEPTIONS = {
    "test_ddp_logging_data_cpu": "DDP's log calls every backend that is not PyTorch's own `custom`",
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
    "test_sparse_all_reduce_sum": "sparse tensors are refused on purpose",
}

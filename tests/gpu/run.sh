#!/usr/bin/env bash
# Builds smfar against the torch that is installed and runs the GPU tests, on a machine that needs
# only torch with CUDA, a C/C++ compiler and pytest. Multicast stays off throughout: this script is
# for machines whose switch must not be touched. With one GPU several ranks share it.
set -euo pipefail
export SMFAR_MULTICAST=0 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
cd "$(dirname "$0")/../.."
python3 setup.py --quiet build_ext --inplace
python3 -m pytest -q -p no:cacheprovider --timeout 300 tests/gpu "$@"

#!/usr/bin/env bash
# Builds smfar against the torch that is installed, runs the GPU tests and the bench, in one go, on a
# machine that needs only torch with CUDA, a C/C++ compiler and pytest.
#
#   tests/gpu/run.sh [FOLDER]    FOLDER receives the bench's figures as JSON (default: build/gpu)
#
# Multicast stays off throughout: this script is for machines whose switch must not be touched.
# With fewer than two GPUs ranks share one, under MPS where that can be started, so that they run at
# the same time.
set -euo pipefail
export SMFAR_MULTICAST=0 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
cd "$(dirname "$0")/../.."
folder=${1:-build/gpu}
mkdir -p "$folder"
python3 setup.py --quiet build_ext --inplace
python3 -m pytest -q -p no:cacheprovider --timeout 300 tests/gpu

gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
bench() { python3 -W ignore -m smfar bench --device cuda --min 256 --max 256M "$@"; }
if [ "$gpus" -ge 2 ]; then
    bench --ranks "$gpus" --json "$folder/bench-$gpus-gpus.json"
    exit
fi
if command -v nvidia-cuda-mps-control >/dev/null; then
    export CUDA_MPS_PIPE_DIRECTORY=/tmp/smfar-mps CUDA_MPS_LOG_DIRECTORY=/tmp/smfar-mps-log
    mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
    nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
for ranks in 2 4 8; do
    bench --ranks "$ranks" --max 16M --json "$folder/bench-1-gpu-$ranks-ranks.json"
done

#!/usr/bin/env bash
# Builds smfar against the torch that is installed and runs what needs GPUs, on a machine that has
# only torch with CUDA, a C/C++ compiler and pytest.
#
#   tests/gpu/run.sh [--out FOLDER] [PART…]
#
# FOLDER receives every bench's figures as JSON, and pictures where matplotlib is (default: build/gpu).
# Each part takes a few minutes; without a PART all run, in this order:
#
#   tests     tests/gpu, but for the benches, which have parts of their own
#   endurance 10,000 calls and 200 groups
#   checkptx  every peer kernel against its reference
#   bench     times, and what is held, by size
#   moves     the same of all-gather, reduce-scatter, broadcast and all-to-all
#   train     steps of DDP and FSDP2 with a billion parameters
#   norm      the fused all-reduce and RMSNorm beside the steps one by one
#   overlap   matrix products beside an all-reduce
#   skew      what waiting for a late rank costs
#   held      copies while every multiprocessor is taken
#   conformance  PyTorch's own tests with NCCL and smfar; goes on where it stopped in FOLDER
#   tune      the fastest all-reduce of each size, beside what the plan takes; a plan table
#   sanitize  compute-sanitizer's memcheck, synccheck and initcheck over every peer kernel
#   kernels   registers, spills and size per kernel
#
# Multicast stays off throughout: this script is for machines whose switch must not be touched.
# With fewer than two GPUs ranks share one; the benches then run under MPS where that can be started,
# so that ranks run at the same time. Ends with 1 if any part failed, after having run the others.
set -uo pipefail
export SMFAR_MULTICAST=0 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export SMFAR_PLAN_TABLE=0 # not the user's
cd "$(dirname "$0")/../.."
folder=build/gpu
[ "${1:-}" = --out ] && folder=$2 && shift 2
all="tests endurance checkptx bench moves train norm overlap skew held conformance tune sanitize kernels"
parts=${*:-$all}
for part in $parts; do
    [[ " $all " == *" $part "* ]] && continue
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
done
mkdir -p "$folder"
python3 setup.py --quiet build_ext --inplace || exit
gpus=$(python3 -c 'import torch; print(torch.cuda.device_count())')
ranks=$((gpus < 2 ? 2 : gpus))
name=$((gpus < 2 ? 1 : gpus))-gpu-$ranks-ranks

# runs its arguments where ranks that share a GPU run at the same time; the server stays until the end
mps=(env CUDA_MPS_PIPE_DIRECTORY=/tmp/smfar-mps CUDA_MPS_LOG_DIRECTORY=/tmp/smfar-mps-log)
mps_runs=
start_mps() {
    [ "$gpus" -lt 2 ] && command -v nvidia-cuda-mps-control >/dev/null || return 0
    [ -z "$mps_runs" ] || return 0
    mkdir -p /tmp/smfar-mps /tmp/smfar-mps-log
    "${mps[@]}" nvidia-cuda-mps-control -d && mps_runs=1
    trap 'echo quit | "${mps[@]}" nvidia-cuda-mps-control' EXIT
}
smfar() { timeout "$1" python3 -W ignore -m smfar "${@:2}"; }
smfar_mps() { timeout "$1" ${mps_runs:+"${mps[@]}"} python3 -W ignore -m smfar "${@:2}"; }

bench() {
    local options=(--device cuda --min 256)
    if [ "$gpus" -ge 2 ]; then
        smfar 540 bench "${options[@]}" --max 256M --ranks "$ranks" --json "$folder/bench-$name.json"
        return
    fi
    # eight processes share this machine's cores, too
    smfar_mps 240 bench "${options[@]}" --max 16M --ranks 2 --json "$folder/bench-$name.json" &&
        smfar_mps 240 bench "${options[@]}" --max 16M --ranks 4 --repeats 10 \
            --json "$folder/bench-1-gpu-4-ranks.json" &&
        smfar_mps 120 bench --device cuda --min 1K --max 4M --step 16 --ranks 8 --repeats 5 \
            --json "$folder/bench-1-gpu-8-ranks.json"
}

moves() {
    local options=(--device cuda --ranks "$ranks" --json "$folder/moves-$name.json")
    [ "$gpus" -ge 2 ] || options+=(--max 16M --repeats 10)
    smfar_mps 400 bench moves --max 1G "${options[@]}"
}

train() {
    local options=(--ranks "$ranks" --json "$folder/train-$name.json")
    [ "$gpus" -ge 2 ] || options+=(--budgets 4) # the copies of all ranks share one GPU's memory
    smfar_mps 580 bench train --seconds 40 "${options[@]}"
}

norm() {
    smfar_mps 290 bench norm --ranks "$ranks" --repeats 5 --json "$folder/norm-$name.json" || return
    [ "$gpus" -ge 2 ] || smfar_mps 290 bench norm --tokens 16,256,4096 --hidden 4096 --ranks 4 \
        --repeats 5 --json "$folder/norm-1-gpu-4-ranks.json"
}

pytest() { timeout 580 python3 -m pytest -q -rs -p no:cacheprovider --timeout 300 "$@" tests/gpu; }

build_checkptx() {
    make -s -j "$(nproc)" build/test/bin/checkptx >"$folder/make.log" 2>&1 && return
    tail "$folder/make.log"
    return 1
}

# of millions of cases the sample that has every pair of parameter values
checkptx() {
    build_checkptx || return
    for count in 2 4 8; do timeout 190 build/test/bin/checkptx --gpu --seed 1 --ranks $count || return; done
}

sanitize() {
    local tool bad=0
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -1)
    [ -n "$tool" ] || { echo "no compute-sanitizer (it comes with the CUDA toolkit)"; return 77; }
    build_checkptx || return
    # what calls of the driver return is the program's to judge
    for check in "memcheck --report-api-errors no" synccheck initcheck; do
        echo "-- $check"
        timeout 185 "$tool" --tool $check --error-exitcode 9 --print-limit 20 \
            build/test/bin/checkptx --gpu --seed 1 --ranks 2 || bad=1
    done
    return $bad
}

# NCCL's ranks need a GPU each
conformance() {
    timeout 580 python3 -W ignore tests/conformance/run.py --device cuda --jobs 8 --seconds 450 \
        --json "$folder/conformance-outcomes.json" --out "$folder/conformance.md"
}

pictures() {
    python3 -c 'import matplotlib' 2>/dev/null || return 0
    for file in "$folder"/{bench,moves,overlap,skew,held}-*.json; do
        [ -e "$file" ] || continue
        smfar 60 bench plot "$file" --out "${file%.json}.svg" || return
    done
}

run_part() {
    local json=$folder/$1-$name.json
    case $1 in
    tests) pytest --ignore tests/gpu/test_bench.py ;;
    endurance) SMFAR_TEST_CALLS=10000 SMFAR_TEST_CYCLES=200 pytest -k endurance ;;
    bench) start_mps && bench ;;
    moves) start_mps && moves ;;
    train) start_mps && train ;;
    norm) start_mps && norm ;;
    overlap | skew) start_mps && smfar_mps 300 bench "$1" --ranks "$ranks" --json "$json" ;;
    held) smfar 120 bench held --ranks "$ranks" --json "$json" ;;
    tune)
        start_mps
        smfar_mps 540 tune --device cuda --ranks "$ranks" --max 64M --out "$folder/plan_table-$name"
        ;;
    checkptx) checkptx ;;
    conformance) conformance ;;
    sanitize) sanitize ;;
    kernels) smfar 120 kernels ;;
    esac
}

failed=
for part in $parts; do
    printf '\n== %s, %s\n' "$part" "$(date -u +%H:%M:%S)"
    run_part "$part"
    status=$?
    # 77: skipped, and the part has said why
    [ $status = 0 ] || [ $status = 77 ] || failed="$failed $part"
done
pictures || failed="$failed pictures"
[ -z "$failed" ] || { echo "failed:$failed" && exit 1; }

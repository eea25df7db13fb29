#!/usr/bin/env bash
# Everything there is to learn on a machine with a GPU, without a network, within eight minutes:
#
#     bash tools/gpu_check.sh FOLDER
#
# Needs torch, triton, pytest, scikit-build-core, pybind11, ninja and nvcc. Installs nothing outside
# of a temporary folder. FOLDER gets log.txt, one JSON file per study, summary.txt with each step's
# outcome, and all of it once more in results.tar.gz. A step that fails or runs out of time does not
# stop the others; the exit code then is 1. A study that runs out of time is interrupted as by
# Ctrl-C, and writes what it has.
set -uo pipefail
out=${1:?usage: gpu_check.sh FOLDER}
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
tree=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
end=$((SECONDS + ${GPU_CHECK_SECONDS:-465}))
failed=0
: >"$out/log.txt"
: >"$out/summary.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step SECONDS NAME COMMAND...: at most so long, and never past the end of the whole check
step() {
  local limit=$1 name=$2 began=$SECONDS left=$((end - SECONDS)) code
  shift 2
  if ((left < 15)); then
    echo "$name: left out, the time is up" | tee -a "$out/summary.txt"
    failed=1
    return
  fi
  printf '\n== %s: %s\n' "$name" "$*" >>"$out/log.txt"
  timeout --signal=INT --kill-after=10 $((limit < left ? limit : left)) "$@" >>"$out/log.txt" 2>&1
  code=$?
  ((code == 0)) || failed=1
  echo "$name: exit $code after $((SECONDS - began)) s" | tee -a "$out/summary.txt"
}

fusebench() {
  step "$1" "$2" "$python" -m fusebench.cli "${@:3}" --json "$out/$2.json" --quiet
}

export PYTHONUNBUFFERED=1 MAX_JOBS="$(nproc)" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)"
{
  git -C "$tree" log -1 --format='commit %H' 2>/dev/null
  nvidia-smi
  "$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
} >>"$out/log.txt" 2>&1

# --target leaves the machine's own packages alone, and works where Python is externally managed.
step 180 build "$python" -m pip install "$tree" --no-build-isolation --no-deps --no-index \
  --disable-pip-version-check --target "$work/site"
export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
cd "$work" || exit 2 # the installed package, not the source tree
step 30 info bash -c '"$0" -m fusebench.cli info --json >"$1"' "$python" "$out/info.json"

arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[[ $arch == 90 ]] && arch=90a # wgmma and setmaxnreg are there by that name only
step 40 probe bash -c "nvcc -arch=sm_$arch -std=c++17 -I '$tree/csrc' -o probe '$tree/tests/sim/probe.cu' && ./probe"
step 90 tests "$python" -m pytest -q -m gpu -p no:cacheprovider "$tree/tests"

for op in qkv_proj swiglu_ffn linear_cross_entropy linear embedding; do
  fusebench 40 "op-$op-16k" op "$op" --model gpt2-small --seq 1024 --batch 16 --dtype bfloat16 \
    --rounds 20
done
step 100 figures "$python" "$tree/tools/gpu_figures.py" "$out/figures.json"
# The GEMM core against cuBLAS: out_proj is a product and a residual.
fusebench 40 op-gemm op out_proj --shape T=4096,C=4096,H=32,F=8,V=8 \
  --shape T=8192,C=8192,H=64,F=8,V=8 --dtype bfloat16 --rounds 20
fusebench 30 op-qkv_proj-rope op qkv_proj --model smollm2-135m --seq 4096 --batch 4 \
  --dtype bfloat16 --rounds 20
for seq in 512 8192; do
  fusebench 30 "op-sdpa-$seq" op sdpa --model smollm2-135m --seq "$seq" --dtype bfloat16 --rounds 20
done
inductor=(reference@eager reference@default reference@reduce-overhead reference@max-autotune)
ours=(triton@default triton@reduce-overhead cuda@default cuda@reduce-overhead)
for model in gpt2-small seed; do
  fusebench 110 "compare-$model" compare "${inductor[@]}" "${ours[@]}" --model "$model" --seq 1024 \
    --batch 8 --dtype bfloat16 --rounds 30
done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step 60 "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" -m pytest -q -m gpu \
      -p no:cacheprovider "$tree/tests/cuda" -k "test_values and embedding or test_values and 130"
  done
fi
tar -czf "$work/results.tar.gz" -C "$out" --exclude results.tar.gz . && mv "$work/results.tar.gz" "$out"
exit $failed

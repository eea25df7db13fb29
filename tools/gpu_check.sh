#!/usr/bin/env bash
# Everything there is to learn on a machine with a GPU, without a network, within eight minutes:
#
#     bash tools/gpu_check.sh FOLDER
#
# Needs torch, triton, pytest, scikit-build-core, pybind11, ninja and nvcc; installs nothing else.
# FOLDER gets log.txt, one JSON file per study, and summary.txt with each step's outcome. A step
# that fails or runs out of time does not stop the others; the exit code then is 1.
set -uo pipefail
out=${1:?usage: gpu_check.sh FOLDER}
mkdir -p "$out" && out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
end=$((SECONDS + ${GPU_CHECK_SECONDS:-470}))
failed=0
: >"$out/log.txt"
: >"$out/summary.txt"

# step SECONDS NAME COMMAND...: at most so long, and never past the end of the whole check
step() {
  local limit=$1 name=$2 began=$SECONDS left=$((end - SECONDS)) code
  shift 2
  if ((left < 5)); then
    echo "$name: left out, the time is up" | tee -a "$out/summary.txt"
    failed=1
    return
  fi
  printf '\n== %s: %s\n' "$name" "$*" >>"$out/log.txt"
  timeout --kill-after=5 $((limit < left ? limit : left)) "$@" >>"$out/log.txt" 2>&1
  code=$?
  ((code == 0)) || failed=1
  echo "$name: exit $code after $((SECONDS - began)) s" | tee -a "$out/summary.txt"
}

export PYTHONUNBUFFERED=1 MAX_JOBS="$(nproc)" CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)"
{
  git log -1 --format='commit %H' 2>/dev/null
  nvidia-smi
  "$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
} >>"$out/log.txt" 2>&1

step 200 build "$python" -m pip install . --no-build-isolation --no-deps --no-index
cd "$out" || exit 1 # the installed package, not the source tree
tree=$OLDPWD
fusebench=("$python" -m fusebench.cli)
step 30 info "${fusebench[@]}" info --json "$out/info.json"

arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[[ $arch == 90 ]] && arch=90a # wgmma and setmaxnreg are there by that name only
step 40 probe bash -c "nvcc -arch=sm_$arch -std=c++17 -I '$tree/csrc' -o probe '$tree/tests/sim/probe.cu' && ./probe"
step 100 tests "$python" -m pytest -q -m gpu -p no:cacheprovider "$tree/tests"
step 60 check "${fusebench[@]}" check swiglu_ffn --device cuda --dtype bfloat16 --json check.json --quiet

inductor=(reference@eager reference@default reference@reduce-overhead reference@max-autotune)
ours=(triton@default triton@reduce-overhead cuda@default cuda@reduce-overhead)
for model in seed gpt2-small; do
  step 90 "compare-$model" "${fusebench[@]}" compare "${inductor[@]}" "${ours[@]}" \
    --model "$model" --seq 1024 --batch 8 --dtype bfloat16 --rounds 30 --json "compare-$model.json" --quiet
done
for seq in 2048 16384 512 8192; do
  step 40 "op-sdpa-$seq" "${fusebench[@]}" op sdpa --model smollm2-135m --seq "$seq" \
    --dtype bfloat16 --rounds 20 --json "op-sdpa-$seq.json" --quiet
done
for op in qkv_proj swiglu_ffn linear embedding; do
  step 40 "op-$op" "${fusebench[@]}" op "$op" --model gpt2-small --seq 1024 --batch 16 \
    --dtype bfloat16 --rounds 20 --json "op-$op-16k.json" --quiet
done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step 60 "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" -m pytest -q -m gpu \
      -p no:cacheprovider "$tree/tests/cuda" -k "test_values and embedding or test_values and 130"
  done
fi
exit $failed

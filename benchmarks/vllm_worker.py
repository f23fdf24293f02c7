"""vLLM's side of vllm_decode.py, run by vLLM's own interpreter: a line of JSON in, a line of JSON out.

In: {"prompts": [[ids], …], "tokens": n}. Out: {"seconds": s, "replies": [[ids], …]}; the first line out is
{"version": …, "compiled_by": …}, once the model is loaded. It runs as vLLM chooses by itself, compiled.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    checkpoint, threads, rows, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.environ["OMP_NUM_THREADS"] = threads
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["HF_HUB_OFFLINE"] = "1"
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints does so beside the answers
    import vllm

    model = vllm.LLM(
        checkpoint,
        dtype="float32",
        max_model_len=length,
        max_num_seqs=rows,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    chosen = model.llm_engine.vllm_config.compilation_config
    about = {"version": vllm.__version__, "compiled_by": f"{chosen.backend}, mode {int(chosen.mode)}"}
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        # the end of the turn is not drawn before min_tokens: every reply is equally long
        params = vllm.SamplingParams(
            temperature=0.0, max_tokens=asked["tokens"], min_tokens=asked["tokens"], detokenize=False
        )
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        started = time.perf_counter()
        outputs = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        replies = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"seconds": seconds, "replies": replies}), file=answers, flush=True)


if __name__ == "__main__":
    main()

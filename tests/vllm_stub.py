"""Stands in for the command `vllm` in tests: a real model behind vLLM's addresses.

It knows /health, /v1/models and /v1/completions with token ids, as humanlm.serve asks, and the
log-probabilities of a prompt (`prompt_logprobs`), as bits are measured, and nothing else. The
real vLLM is asked in tests/models/test_vllm.py where there is one.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def main() -> None:
    from humanlm.models.checkpoints import load_model
    from humanlm.models.generation import generate

    assert (
        sys.argv[1] == "serve"
        and option("--host") == "127.0.0.1"
        and option("--generation-config") == "vllm"
    )
    adapter = option("--lora-modules").partition("=")
    names = {option("--served-model-name"), adapter[0]}
    loaded, lock = load_model(adapter[2] or sys.argv[2], "own", device="cpu"), threading.Lock()

    def read(ids):
        "What vLLM says of a prompt: of each token but the first, its log-probability and the best"
        import torch

        with torch.no_grad():
            logps = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)

        def told(row, id):
            rank = 1 + int((row > row[id]).sum())
            return {"logprob": row[id].item(), "rank": rank, "decoded_token": str(id)}

        found = [
            {f"{i}": told(row, i) for i in (id, int(row.argmax()))}
            for row, id in zip(logps[:-1], ids[1:])
        ]
        return {"index": 0, "text": "x", "prompt_logprobs": [None, *found]}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            place = adapter[2] or sys.argv[2]
            card = {"object": "model", "root": place, "max_model_len": 4096}
            cards = {"object": "list", "data": [card | {"id": name} for name in names]}
            known = {"/health": {}, "/v1/models": cards}
            self.answer(200 if self.path in known else 404, known.get(self.path, {}))

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions" or asked["model"] not in names:
                return self.answer(404, {"error": {"message": "no such model"}})
            if "prompt_logprobs" in asked:
                with lock:
                    return self.answer(200, {"choices": [read(asked["prompt"])]})
            assert (
                asked["return_token_ids"]
                and asked["include_stop_str_in_output"]
                and asked["stop_token_ids"]
            )
            n, seed = asked["n"], asked.get("seed")
            seeds = [None if seed is None else seed + i for i in range(n)]
            with lock:
                found = generate(
                    *loaded,
                    [asked["prompt"]] * n,
                    asked["max_tokens"],
                    [tuple(asked["stop"])] * n,
                    asked["temperature"],
                    max(0, asked["top_k"]),
                    asked["top_p"],
                    seeds,
                )
            choices = [
                {
                    "index": i,
                    "text": c.text,
                    "token_ids": c.ids,
                    "finish_reason": "stop",
                    "logprobs": None,
                }
                for i, c in enumerate(found)
            ]
            self.answer(
                200,
                {
                    "id": "x",
                    "object": "text_completion",
                    "created": 0,
                    "model": asked["model"],
                    "choices": choices,
                    "usage": {
                        "prompt_tokens": len(asked["prompt"]),
                        "completion_tokens": sum(len(c.ids) for c in found),
                        "total_tokens": 0,
                    },
                },
            )

        def answer(self, status, body):
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()

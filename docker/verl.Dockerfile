# The engine verl in a container: what constraints-verl.txt pins, run on a CPU in that set. Not built where this was written (no Docker there); a test compares the pins.
#   docker build -f docker/verl.Dockerfile -t humanlm-verl .
#   docker run --rm -v "$PWD/runs:/home/user/humanlm/runs" humanlm-verl python -m humanlm.train --config configs/classmate-mini.yaml --run.engine verl --verl.device cpu
# With GPUs verl has pins of its own (torch 2.11, vLLM 0.24, transformers 5.9), and wants flash-attn or the settings that a start without it names:
#   docker build -f docker/verl.Dockerfile --build-arg KIND=gpu --build-arg BASE=nvidia/cuda:12.9.1-devel-ubuntu24.04 -t humanlm-verl-gpu .
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG KIND=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv git && rm -rf /var/lib/apt/lists/* && useradd --create-home user
USER user
WORKDIR /home/user
ENV PATH=/home/user/venv/bin:$PATH PIP_NO_CACHE_DIR=1 TOKENIZERS_PARALLELISM=false
COPY --chown=user constraints-verl.txt ./
RUN python3 -m venv venv && if [ "$KIND" = gpu ]; then \
      grep -vE '^(verl|torch|transformers|tokenizers|huggingface-hub|numpy|ray|tensordict)' constraints-verl.txt > rest.txt && pip install 'verl[vllm]==0.9.1' && pip install -r rest.txt; \
    else pip install --index-url "$TORCH_INDEX" torch==2.13.0 && pip install torch==2.13.0 -r constraints-verl.txt; fi
COPY --chown=user . humanlm/
RUN pip install --no-deps ./humanlm
WORKDIR /home/user/humanlm

# syntax=docker/dockerfile:1
# Three images from one file:
#   docker build --target site -t dailytrain-site .    the web site, Celery worker and beat
#   docker build --target node -t dailytrain-node .    the agent with trainer, scorer and sandbox (CPU)
#   docker build --target volunteer -t dailytrain-volunteer .    the agent that rephrases, with vLLM (NVIDIA)

FROM python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /app

FROM node:20-bookworm-slim@sha256:2cf067cfed83d5ea958367df9f966191a942351a2df77d6f0193e162b5febfc0 AS assets
WORKDIR /app
COPY package.json package-lock.json ./
RUN mkdir -p static && npm ci --no-audit --no-fund

FROM base AS site
RUN apt-get update \
    && apt-get install -y --no-install-recommends fonts-dejavu-core git postgresql-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 train
# The site never imports torch: install only its own packages, at the locked versions. What they
# require is locked, too, or left out (--no-deps). The tokenizer and the numeric
# parts of the trainer are for `manage.py prepare_season`, which runs as its own process.
COPY requirements.lock pyproject.toml docker/not_for_site.txt ./
RUN grep -v -i -E -f not_for_site.txt requirements.lock > site.lock \
    && pip install --no-deps -r site.lock
COPY . .
COPY --from=assets /app/static/vendor static/vendor
# Downloads and prepared datasets are below the volume, too.
ENV DAILYTRAIN_HOME=/data DAILYTRAIN_CACHE=/data/cache PYTHONPATH=/app
ENV STATIC_ROOT=/app/collected WHEELS=/app/wheels HF_HOME=/data/hub XDG_CACHE_HOME=/data/cache
RUN mkdocs build --strict --quiet
RUN SECRET_KEY=only-for-collecting DAILYTRAIN_HOME=/tmp/build python manage.py collectstatic --noinput \
    && SECRET_KEY=only-for-building DAILYTRAIN_HOME=/tmp/build python manage.py build_wheel \
    && rm -rf /tmp/build && mkdir -p /data && chown train:train /data
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
CMD ["python", "-m", "uvicorn", "dailytrain.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-proxy-headers"]

FROM base AS node
# Triton, which torch.compile uses on a GPU, compiles the launcher of its kernels with the machine's C compiler.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10002 node
# Give the address of PyTorch's index of CPU builds for a small image; without it pip takes the CUDA build.
ARG TORCH_INDEX=""
COPY requirements.lock pyproject.toml README.md ./
COPY trainer trainer
RUN pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && pip install -c requirements.lock '.[training,gpu,notebook,swarm,rephrase]'
# FlashAttention 3, for Hopper GPUs: PyTorch's index has a wheel for any Python and torch of this image. It is never
# compiled; without a wheel the node uses PyTorch's own kernels.
ARG FLASH_INDEX="https://download.pytorch.org/whl/cu130"
RUN test -n "$TORCH_INDEX" \
    || pip install --no-deps --only-binary=:all: --index-url "$FLASH_INDEX" flash-attn-3 \
    || echo "No wheel of FlashAttention 3 fits."
USER 10002
ENV DAILYTRAIN_HOME=/home/node/data
RUN mkdir -p /home/node/data
VOLUME /home/node/data
# Bubblewrap creates user namespaces and mounts, which the engine's default profiles forbid (SECURITY.md). Run with
#   --cap-drop ALL --security-opt no-new-privileges
#   --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined
# It never needs the engine's socket.
ENTRYPOINT ["dailytrain", "node"]

FROM base AS volunteer
RUN useradd --create-home --uid 10003 volunteer \
    && mkdir -p /home/node/data && chown -R volunteer:volunteer /home/node
# vLLM brings torch with CUDA, several gigabytes. With EXTRAS=rephrase the image is small and writes with a server that
# is there (--endpoint).
ARG EXTRAS="rephrase,vllm"
COPY requirements.lock pyproject.toml README.md ./
COPY trainer trainer
# The lock holds torch for CPU beside what vLLM asks for: only the small image is built at its versions.
RUN if [ "$EXTRAS" = rephrase ]; then pip install -c requirements.lock '.[rephrase]'; else pip install ".[$EXTRAS]"; fi
USER 10003
ENV DAILYTRAIN_HOME=/home/node/data HF_HOME=/home/node/data/hub
VOLUME /home/node/data
# Nobody else's code runs in it: packets are text. It needs no privilege but the GPU.
ENTRYPOINT ["dailytrain", "rephrase", "join"]

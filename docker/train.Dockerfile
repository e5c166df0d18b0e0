# Training and every other verb; the working directory is where data and runs are mounted.
#
#   docker build --tag softtriple --file docker/train.Dockerfile .
#   docker run --volume "$PWD:/work" softtriple train photos/ --out runs/photos
#   docker run --gpus all --shm-size 8g --volume "$PWD:/work" --entrypoint torchrun softtriple \
#       --nproc-per-node 8 -m softtriple train photos/ --out runs/photos
#
# pip takes torch's default build, which on Linux brings CUDA. For the CPU build, name an index that has it:
#   --build-arg PIP_EXTRA_INDEX_URL=...
# CUDA: --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 (its Python 3 is 3.12).
ARG BASE=python:3.11-slim-bookworm

FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# The CUDA images have no Python; the Python images have one already.
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null; then \
        apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && \
        rm -rf /var/lib/apt/lists/*; \
    fi && \
    python3 -m venv /opt/softtriple && \
    useradd --create-home --uid 10001 softtriple && \
    install --directory --owner softtriple /work
ENV PATH=/opt/softtriple/bin:$PATH
ARG PIP_EXTRA_INDEX_URL=
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
RUN wheel="$(echo /tmp/wheels/softtriple-*.whl)" && \
    pip install --no-cache-dir --constraint /tmp/constraints.txt \
        "${wheel}[huggingface,onnx,parquet,store,tensorboard,text,timm]" && \
    rm -rf /tmp/wheels /tmp/constraints.txt
USER 10001
WORKDIR /work
# Nothing listens here: the check is that the package and torch load.
HEALTHCHECK --interval=5m --timeout=60s CMD ["softtriple", "info"]
ENTRYPOINT ["softtriple"]
CMD ["--help"]

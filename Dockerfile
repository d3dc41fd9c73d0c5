# lra-bench with the boards of the project, as a user without privileges. Results are written to /work:
#
#   docker build -t lra-bench .
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" lra-bench bench task=listops model=performer
#
# With an NVIDIA GPU (docker run --gpus all …); gcc and the headers of Python compile kernels:
#
#   docker build -t lra-bench:cuda --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 --build-arg TORCH_INDEX= \
#     --build-arg PACKAGES="python3 python3-venv python3-dev gcc" .
#
# Image sizes on Debian 12 with Python 3.11: 1.96 GB with the CPU build of PyTorch, 5.99 GB with the CUDA build.
ARG BASE=python:3.12-slim

FROM ${BASE} AS install
ARG PACKAGES=""
# Index of the builds of PyTorch for CPUs, which are smaller; if it is empty, those of the default index are installed.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN test -z "$PACKAGES" || { apt-get update && apt-get install -y --no-install-recommends $PACKAGES; }
COPY . /source
RUN python3 -m venv /opt/lra-bench \
  && /opt/lra-bench/bin/pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    -c /source/constraints.txt /source \
  && find /opt/lra-bench -name __pycache__ -prune -exec rm -rf {} +

FROM ${BASE}
ARG PACKAGES=""
RUN { test -z "$PACKAGES" || { apt-get update && apt-get install -y --no-install-recommends $PACKAGES; }; } \
  && rm -rf /var/lib/apt/lists/* && mkdir -m 1777 /work /cache && useradd --create-home --shell /bin/bash lra
COPY --from=install /opt/lra-bench /opt/lra-bench
ENV PATH=/opt/lra-bench/bin:$PATH LRA_BENCH_CACHE=/cache MPLCONFIGDIR=/cache/matplotlib
USER lra
WORKDIR /work
ENTRYPOINT ["lra-bench"]
CMD ["--help"]

# docker build -t g10sim . && docker run --rm -v "$PWD/results:/g10sim/results" g10sim
FROM python:3.13-slim
WORKDIR /g10sim
COPY . .
ENV PIP_NO_CACHE_DIR=1
RUN pip install .
CMD ["g10sim", "run", "configs/quickstart.yaml"]

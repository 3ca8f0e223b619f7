#!/bin/sh
# Fuzzes the decoder for SECONDS (600 unless given) with libFuzzer, ASan and UBSan: sh fuzz/run.sh [SECONDS]
#
# Starts from fuzz/corpus; new inputs go to build/fuzz/corpus, findings to build/fuzz. Ends with the status of the
# fuzzer: not 0 if any input crashes, hangs for 10 seconds, or needs more than 1 GiB.
set -eu
cd "$(dirname "$0")/.."
CLANG=${CLANG:-clang}
if ! command -v "$CLANG" >/dev/null; then
    echo "fuzzing needs clang with its runtime: apt-get install clang (or set CLANG to one that has libFuzzer)" >&2
    exit 1
fi
mkdir -p build/fuzz/corpus
"$CLANG" -std=c11 -g -O1 -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined \
    -fno-sanitize-recover=undefined -Istreamrec/kernels/src \
    -o build/fuzz/decode fuzz/fuzz_decode.c streamrec/kernels/src/example/decode_core.c
build/fuzz/decode -max_total_time="${1:-600}" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=64 -max_len=4096 \
    -artifact_prefix=build/fuzz/ -print_final_stats=1 build/fuzz/corpus fuzz/corpus

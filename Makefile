# The two commands of a fresh machine are `make demo` and `make test`; `make check` is for every
# commit. The libraries are built by setup.py; this file builds the C tests, which link the core's
# objects themselves so that they see its internals, under build/VARIANT.
#
#   TORCH=2.13.0     which torch to install when none that fits is there (or a pip requirement)
#   PYTHON=python3   the Python that makes the environment VENV=.venv
#   PTXAS, PTXAS12   assemblers to check the kernels with, beside those found on PATH and in VENV
#   VARIANT          test (default), asan, ubsan, tsan or aarch64
#   MPI=1            build and run examples/hello.c with MPI
#   ONE_IN=50        of checkptx's full product, check-all runs one case in so many
#   SMFAR_TEST_GPU=1 make test also runs what needs GPUs, on those that are there
#   V=1              show the commands
SHELL := /bin/bash
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= python3
VENV ?= .venv
TORCH ?= 2.13.0
VARIANT ?= test
PY := $(VENV)/bin/python
Q := $(if $(V),,@)
B := build/$(VARIANT)

WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes
STD := -std=gnu11 -ffp-contract=off -fPIC -fvisibility=hidden -pthread
SANITIZE_test :=
SANITIZE_asan := -fsanitize=address -fno-omit-frame-pointer
SANITIZE_ubsan := -fsanitize=undefined -fno-sanitize-recover=all
# fences are not modelled: where they order accesses to memory of one mapping, atomics must too
SANITIZE_tsan := -fsanitize=thread -Wno-tsan
SANITIZE := $(SANITIZE_$(VARIANT))
# a sanitizer's own symbols come from the program
comma := ,
NO_UNDEFINED := $(if $(SANITIZE),,-Wl$(comma)-z$(comma)defs)
OPT := -O2 -g
# a register is viewed as several types
SOFT_OPT := -O3 -g -ffp-contract=off -fno-math-errno -fno-strict-aliasing

FOLDERS := base driver bootstrap memory kernels comm collectives
CORE := $(wildcard $(FOLDERS:%=csrc/%/*.c)) $(wildcard csrc/api*.c)
SOFT := $(wildcard csrc/soft/*.c)
CORE_O := $(CORE:%.c=$(B)/obj/%.o) $(B)/obj/kernels_image.o
SOFT_O := $(SOFT:%.c=$(B)/obj/%.o)

# units see the core; the software switch's tests see the switch alone
UNIT := $(patsubst tests/unit/%.c,$(B)/bin/unit/%,$(wildcard tests/unit/test_*.c))
SOFT_TEST := $(patsubst tests/soft/%.c,$(B)/bin/soft/%,$(wildcard tests/soft/test_*.c tests/soft/bench_*.c))
SOFT_HELP := $(filter-out tests/soft/test_% tests/soft/bench_%,$(wildcard tests/soft/*.c))
CHECKPTX := $(wildcard tests/checkptx/*.c) $(wildcard tests/ref/*.c)
# the core looks for the switch beside the program it is linked into
SWITCHES := $(B)/bin/unit/libsmfar_soft.so $(B)/bin/libsmfar_soft.so
PROGRAMS := $(UNIT) $(SOFT_TEST) $(B)/bin/checkptx $(SWITCHES)

C_FILES = $(wildcard csrc/*.[ch] csrc/*/*.[ch] csrc/torch/*.cpp tests/*/*.[ch] examples/*.c)

.PHONY: help demo hello hello-mpi test check check-all check-every lib programs units conformance apps model fuzz \
        asan ubsan tsan aarch64 sanitized format format-check warnings lint ptx clean
help:
	@sed -n 's/^#  *//p' Makefile | head -11
	@echo 'make demo | hello | test | check | check-all | check-every | conformance | apps | model | fuzz | lib | asan | ubsan | tsan | aarch64'
	@echo 'make format | clean'

# ---- the environment and the libraries ----

$(VENV)/ready: scripts/environment.py pyproject.toml
	@$(PYTHON) scripts/environment.py --venv $(VENV) --torch '$(TORCH)'
	@touch $@

lib: $(VENV)/ready
	@PTXAS='$(PTXAS)' $(PY) setup.py --quiet build_ext --inplace

demo: lib
	$(VENV)/bin/torchrun --standalone --nproc-per-node 4 examples/ddp.py

# as a program of one's own is built and linked
HELLO := $(B)/bin/$(if $(MPI),hello_mpi,hello)
NORM := $(B)/bin/$(if $(MPI),rms_norm_mpi,rms_norm)
smfar/libsmfar.so smfar/libsmfar_soft.so:
	@$(MAKE) --no-print-directory lib
$(HELLO): examples/hello.c
$(NORM): examples/rms_norm.c
$(HELLO) $(NORM): csrc/smfar.h smfar/libsmfar.so smfar/libsmfar_soft.so
	@mkdir -p $(@D)
	$(Q)$(if $(MPI),mpicc -DMPI,$(CC)) -O2 -Wall -pthread -Icsrc $(filter %.c,$^) -Lsmfar -lsmfar \
	    -lm -ldl -Wl,-rpath,'$(CURDIR)/smfar' -o $@

hello: $(HELLO) $(NORM)
ifdef MPI
	timeout 300 mpirun --oversubscribe -n 4 $(HELLO)
	SOFT=1 timeout 300 mpirun --oversubscribe -n 4 $(NORM)
else
	NTHREADS=4 timeout 300 $(HELLO)
	NPROCS=4 timeout 300 $(HELLO)
	SOFT=1 NTHREADS=4 timeout 300 $(NORM)
endif

# ---- tests ----

RUN = CC='$(CC)' PTXAS='$(PTXAS)' PTXAS12='$(PTXAS12)' $(PY) tests/run.py --bin $(B)/bin

test: lib programs hello
	@$(RUN) unit soft checkptx mutate check python $(if $(SMFAR_TEST_GPU),gpu)

units: programs
	@$(RUN) unit soft

check: format-check warnings lint lib programs
	@$(RUN) unit check

# what takes too long for every test run: an hour or two on 2 cores
ONE_IN ?= 50
check-all: lib programs model hello-mpi
	$(B)/bin/checkptx --schedules 20000 --seed 1000001
	$(PY) tests/mutate/run.py --checkptx $(B)/bin/checkptx
	$(B)/bin/unit/test_turns 20000
	SMFAR_SOFT_CHECKED=1 $(B)/bin/unit/test_stress 5000
	$(B)/bin/unit/test_stress 100000
	$(B)/bin/unit/test_sweep --all
	$(B)/bin/unit/test_cycles 1000
	$(B)/bin/checkptx --one-in $(ONE_IN)
	@$(MAKE) --no-print-directory fuzz asan ubsan tsan aarch64

# every case of every kernel: some seven million, a day or more
check-every: programs
	$(B)/bin/checkptx --all

# mpirun refuses root unless the caller has allowed it
hello-mpi: lib
	@if ! command -v mpicc >/dev/null; then echo 'hello under MPI: skipped, no mpicc'; \
	elif [ "$$(id -u)" = 0 ] && [ -z "$$OMPI_ALLOW_RUN_AS_ROOT" ]; then \
	    echo 'hello under MPI: skipped, as root: set OMPI_ALLOW_RUN_AS_ROOT=1' \
	        'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1'; \
	else $(MAKE) --no-print-directory MPI=1 hello; fi

# PyTorch's own tests of process groups, with gloo and with smfar; they need one small package more
conformance: lib
	$(PY) tests/conformance/run.py --out docs/conformance.md

# applications from PyPI, in an environment of their own; 77: they cannot be had, and it has said so
apps: lib
	@$(PY) tests/apps/run.py --venv build/apps || [ $$? = 77 ]

# the barrier between ranks and the push, for spin; 77: there is none, and it has said so
model: $(VENV)/ready
	@$(PY) tests/model/run.py || [ $$? = 77 ]

# each fuzzer for FUZZ_S seconds, from generated seeds; what it finds stays in build/fuzz
FUZZ_S ?= 60
FUZZ := $(patsubst tests/fuzz/%.c,build/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_CC := clang -g -O1 -std=gnu11 -pthread -fsanitize=fuzzer,address,undefined
FUZZ_CC += -fno-sanitize-recover=all -fno-strict-aliasing -Wno-pass-failed
FUZZ_BASE := $(wildcard csrc/base/*.c)
FUZZ_OF_fuzz_ptx := $(wildcard csrc/soft/ptx*.c)
FUZZ_OF_fuzz_exchange := $(patsubst %,csrc/bootstrap/%.c,agree fdpass host)

.SECONDARY: $(FUZZ)
fuzz:
	@if command -v clang >/dev/null; then $(MAKE) --no-print-directory $(FUZZ:%=%.run); \
	else echo 'fuzz: skipped, no clang'; fi
build/fuzz/%: tests/fuzz/%.c $(wildcard csrc/*/*.[ch])
	@mkdir -p $(@D)
	@echo 'building $@'
	$(Q)$(FUZZ_CC) $< $(FUZZ_BASE) $(FUZZ_OF_$*) -lm -o $@
build/fuzz/%.run: build/fuzz/%
	$(Q)$(PYTHON) tests/fuzz/seeds.py --cc '$(CC)' --out build/fuzz/seeds
	@mkdir -p build/fuzz/corpus/$*
	$(Q)ASAN_OPTIONS=detect_leaks=1 $< -max_total_time=$(FUZZ_S) -timeout=10 -rss_limit_mb=4096 \
	    -verbosity=0 -close_fd_mask=2 -print_final_stats=1 -artifact_prefix=build/fuzz/ \
	    build/fuzz/corpus/$* build/fuzz/seeds/$*

asan ubsan tsan:
	@$(MAKE) --no-print-directory VARIANT=$@ sanitized
sanitized: $(VENV)/ready programs
	@TSAN_OPTIONS='suppressions=$(CURDIR)/tests/tsan.supp' $(RUN) unit soft checkptx

# built for another processor, run by an emulator
AARCH64_CC ?= aarch64-linux-gnu-gcc
AARCH64_RUN ?= qemu-aarch64 -L /usr/aarch64-linux-gnu
aarch64: $(VENV)/ready
	@if command -v $(AARCH64_CC) $(firstword $(AARCH64_RUN)) >/dev/null; then \
	    $(MAKE) --no-print-directory VARIANT=$@ CC=$(AARCH64_CC) programs && \
	    SMFAR_TEST_EMULATED=1 $(PY) tests/run.py --bin build/$@/bin --under '$(AARCH64_RUN)' unit soft; \
	else echo 'aarch64: skipped, no cross-compiler or no emulator'; fi

programs: $(VENV)/ready $(PROGRAMS)

$(B)/obj/csrc/soft/%.o: csrc/soft/%.c
	@mkdir -p $(@D)
	@echo 'compiling $<'
	$(Q)$(CC) $(STD) $(SOFT_OPT) $(WARN) $(SANITIZE) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/obj/kernels_image.o: $(B)/kernels_image.c
	@mkdir -p $(@D)
	@echo 'compiling $<'
	$(Q)$(CC) $(STD) $(OPT) $(WARN) $(SANITIZE) $(CFLAGS) -MMD -MP -Icsrc -c $< -o $@

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo 'compiling $<'
	$(Q)$(CC) $(STD) $(OPT) $(WARN) $(SANITIZE) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/kernels_image.c: csrc/kernels/embed.py csrc/kernels/kernels.def csrc/kernels/kargs.h \
                      $(wildcard ptx/*.ptx ptx/*.ptxh)
	@mkdir -p $(@D)
	$(Q)$(PYTHON) csrc/kernels/embed.py --cc '$(CC)' --out $@
	@touch $@

$(B)/bin/libsmfar_soft.so: $(SOFT_O)
	@mkdir -p $(@D)
	@echo 'linking $@'
	$(Q)$(CC) -shared -pthread $(SANITIZE) $(NO_UNDEFINED) $^ -lm -ldl -o $@
$(B)/bin/unit/libsmfar_soft.so: $(B)/bin/libsmfar_soft.so
	@mkdir -p $(@D)
	@ln -sf ../libsmfar_soft.so $@

$(UNIT): $(B)/bin/unit/%: $(B)/obj/tests/unit/%.o $(CORE_O)
	@mkdir -p $(@D)
	@echo 'linking $@'
	$(Q)$(CC) -pthread $(SANITIZE) $(WRAP) $^ -lm -ldl -o $@
# the core's allocations fail on order
$(B)/bin/unit/test_host_memory: WRAP := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc

$(SOFT_TEST): $(B)/bin/soft/%: $(B)/obj/tests/soft/%.o $(SOFT_HELP:%.c=$(B)/obj/%.o) $(SOFT_O)
	@mkdir -p $(@D)
	@echo 'linking $@'
	$(Q)$(CC) -pthread $(SANITIZE) $^ -lm -ldl -o $@

$(B)/bin/checkptx: $(CHECKPTX:%.c=$(B)/obj/%.o) $(CORE_O)
	@mkdir -p $(@D)
	@echo 'linking $@'
	$(Q)$(CC) -pthread $(SANITIZE) $^ -lm -ldl -o $@

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

# ---- what a reader would notice ----

format: $(VENV)/ready
	$(VENV)/bin/clang-format -i $(C_FILES)
	$(VENV)/bin/ruff check --fix --quiet . || true
	$(VENV)/bin/ruff format --quiet .

format-check: $(VENV)/ready
	$(Q)$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	$(Q)$(VENV)/bin/ruff check --quiet .
	$(Q)$(VENV)/bin/ruff format --check --quiet .

# not in the builds: a compiler newer than ours may warn of more
warnings:
	$(Q)$(CC) $(STD) $(WARN) -Werror -Icsrc -fsyntax-only $(filter %.c,$(C_FILES))

# cppcheck knows neither vector types nor _Atomic(type), hence two checks off, nor _Noreturn
lint:
	@if command -v cppcheck >/dev/null; then \
	    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning \
	        '-D_Noreturn=__attribute__((noreturn))' \
	        --inline-suppr --suppress=missingInclude --suppress=internalAstError \
	        --suppress=bufferAccessOutOfBounds:csrc/soft/ptx_memory.c \
	        --suppress='*:csrc/torch/*' -j 2 csrc; \
	else echo 'lint: skipped, no cppcheck'; fi

clean:
	rm -rf build smfar/*.so smfar.egg-info

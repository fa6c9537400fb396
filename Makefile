# metronome: plain GNU make. Everything it makes lies in build/. `make help` lists the targets.

CC       ?= cc
CUDA_HOME ?= /usr/local/cuda
NVCC     ?= $(CUDA_HOME)/bin/nvcc
CFLAGS   ?= -O2 -g
prefix   ?= /usr/local
bindir   ?= $(prefix)/bin
plugindir ?= $(prefix)/lib/metronome
mandir   ?= $(prefix)/share/man
docdir   ?= $(prefix)/share/doc/metronome
pkgdatadir ?= $(prefix)/share/metronome
compdir  ?= $(prefix)/share/bash-completion/completions
JOBS     ?= 1
FUZZ_SECONDS ?= 10

# What `make deps` installs: Debian packages, all that building, testing and the demo need.
DEPS     := gcc g++ libc6-dev make pkg-config \
            libsndfile1-dev libsoxr-dev libkissfft-dev libjansson-dev libpcre2-dev libuv1-dev libutf8proc-dev \
            libmicrohttpd-dev \
            libcmocka-dev bats procps jq socat gnuplot-nox
# What `make deps-test` adds, some 100 MB: programs of others that tests use where they are; Debian starts two as services.
DEPS_TEST := curl haproxy prometheus
# What `make deps-dev` adds, some 600 MB: the tools of `make lint` and `make fuzz`.
DEPS_DEV := clang clang-format clang-tidy libclang-rt-14-dev libomp-dev cppcheck shellcheck mandoc

comma    := ,
B        := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))
Q        := $(if $(V),,@)

# Found when the first recipe needs them, not when this file is read: `make deps demo` installs pkg-config on the way.
PKGS     := sndfile soxr kissfft-float jansson libpcre2-8 libuv libutf8proc libmicrohttpd
PKG       = $(or $(shell pkg-config $1 $(PKGS)),$(error a library is missing: run 'make deps'))
PKG_CF    = $(eval PKG_CF := $$(filter-out -l%,$$(call PKG,--cflags --libs-only-l)))$(PKG_CF)
PKG_LIBS  = $(call PKG,--libs)

WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wvla -Wno-psabi $(if $(CI),-Werror)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
MT_CFLAGS = -std=gnu17 -D_GNU_SOURCE -pthread -fopenmp -fno-math-errno -ffp-contract=off $(WARN) -Ilib -I. \
            $(PKG_CF) $(SANFLAGS)
MT_LIBS   = $(PKG_LIBS) -lm -ldl -pthread -fopenmp

LIB      := $B/libmetronome.a
LIB_OBJ  := $(patsubst %.c,$B/%.o,$(wildcard lib/*/*.c kernels/*.c kernels/cpu/*.c))
HEADERS  := $(wildcard lib/*/*.h kernels/*.h) kernels/cuda/plugin.h
TOOLS    := $(patsubst tools/%.c,$B/%,$(wildcard tools/mt-*.c))
UNIT     := $(patsubst tests/unit/%.c,$B/tests/%,$(wildcard tests/unit/test_*.c))
BENCH    := $(patsubst tests/bench/%.c,$B/tests/%,$(wildcard tests/bench/bench_*.c))
FUZZ     := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
REPLAY   := $(FUZZ:fuzz_%=$B/tests/replay_%)
BATS     := $(wildcard tests/bats/*.bats)
MAN      := $(wildcard man/*.[17])
COMP     := $(wildcard completions/mt-*)
SCRIPTS  := tests/card/bundle tests/card/gpu-check tests/bench/compare tests/chaos tests/soak tests/systemd packaging/deb packaging/chroot .ci/apt .ci/run tests/run contrib/haproxy/fleet contrib/tiny/run $(filter-out %.gp,$(wildcard tools/experiments/*)) $(wildcard tests/bats/*.bash)

# In `make deps demo` everything else waits for deps, under -j too.
FIRST    := $(filter deps deps-test deps-dev,$(MAKECMDGOALS))

# CUDA=1: the backend for NVIDIA cards too, a plugin that is loaded by --backend cuda. nvcc of CUDA 12 or 13.
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
PLUGIN   := $(if $(filter-out 0,$(CUDA)),$B/libmetronome-cuda.so)

.PHONY: all gpu-bundle gpu-check deps deps-test deps-dev demo experiments check headers bench fuzz fuzz-programs lint install uninstall deb clean help
.SECONDARY:

all: $(TOOLS) $(PLUGIN) ## build the tools into build/ (CUDA=1: the plugin for NVIDIA cards too)

# ---- building ----

$B/kernels/cpu/%_avx2.o   $B/kernels/cpu/%_avx2.tidy:   ISA := -mavx2 -mfma -mf16c
$B/kernels/cpu/%_avx2vnni.o $B/kernels/cpu/%_avx2vnni.tidy: ISA := -mavx2 -mfma -mf16c -mavxvnni
$B/kernels/cpu/%_avx512.o $B/kernels/cpu/%_avx512.tidy: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
$B/kernels/cpu/%_avx512vnni.o $B/kernels/cpu/%_avx512vnni.tidy: \
	ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c
$B/kernels/%.o: OPT := -O3

$B/%.o: %.c | $(FIRST)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  cc    $<")
	$Q$(CC) $(MT_CFLAGS) $(CFLAGS) $(OPT) $(ISA) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$Qar rcs $@ $^

LINK      = @mkdir -p $(@D); $(if $(V),,echo "  link  $@";) \
            $(if $(V),set -x;) $(CC) $(CFLAGS) $(SANFLAGS) $(LDFLAGS) -o $@ $^

# A tool with commands of its own keeps them in a folder: tools/mt-probe.c has tools/probe/.
.SECONDEXPANSION:
$B/mt-%: $B/tools/mt-%.o $$(addprefix $B/,$$(addsuffix .o,$$(basename $$(wildcard tools/$$*/*.c)))) $(LIB)
	$(LINK) $(MT_LIBS)

$B/tests/test_%: $B/tests/unit/test_%.o $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

$B/tests/test_bounded: LDFLAGS += -Wl,--wrap=mmap,--wrap=munmap

$B/tests/bench_%: $B/tests/bench/bench_%.o $(LIB)
	$(LINK) $(MT_LIBS)

$B/tests/replay_%: $B/tests/fuzz/fuzz_%.o $B/tests/fuzz/replay.o $(LIB)
	$(LINK) $(MT_LIBS)

$B/tests/fuzz_%: $B/tests/fuzz/fuzz_%.o $(LIB)
	$(LINK) -fsanitize=fuzzer $(MT_LIBS)

# ---- CUDA ----

# Machine code for A100 and H100/H200, and PTX, which a driver compiles for what comes after.
CUDA_ARCH ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_90,code=compute_90
NVCCFLAGS ?= -O3 -lineinfo
# Compressed: a fifth of the size, and unpacked once, when a kernel of a file is first launched.
MT_NVCC   = $(NVCC) -std=c++17 $(CUDA_ARCH) -Xfatbin -compress-all $(NVCCFLAGS) $(if $(CI),-Werror all-warnings) -ccbin $(CXX) \
            -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra -Ilib -I. $(PKG_CF)
# Nothing of C++'s own library is asked of the machine where it runs, which may be older than this one.
NVCC_LINK := -cudart static -ccbin $(CXX) -Xcompiler -static-libstdc++,-static-libgcc
# What it needs of the library it carries itself: the binaries export nothing.
PLUGIN_LIB := $(patsubst %,$B/cuda/%.o,kernels/kernels kernels/conv_pack lib/base/err lib/base/mem lib/audio/mel_bank)
PLUGIN_OBJ := $(CUDA_SRC:%.cu=$B/cuda/%.o) $(PLUGIN_LIB)

$B/cuda/%.o: %.cu
	@mkdir -p $(@D)
	@$(if $(V),,echo "  nvcc  $<")
	$Q$(MT_NVCC) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$B/cuda/%.o: %.c
	@mkdir -p $(@D)
	@$(if $(V),,echo "  cc    $< (plugin)")
	$Q$(CC) $(MT_CFLAGS) -fPIC -fvisibility=hidden $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$B/libmetronome-cuda.so: $(PLUGIN_OBJ)
	@$(if $(V),,echo "  link  $@")
	$Q$(NVCC) -shared $(NVCC_LINK) -o $@ $^ -lcublasLt -Xlinker -rpath,$(CUDA_HOME)/lib64 -Xlinker -z,defs -lm -ldl -lrt -lpthread

# The same device code for the host, under the tests of the kernels: tests/emu says how. A thread is a fibre there,
# which the thread sanitizer can't follow.
EMU_OBJ  := $(CUDA_SRC:%.cu=$B/emu/%.o) $B/emu/tests/emu/cuda_emu.o
EMU_TEST := $(if $(findstring thread,$(SAN)),,$(patsubst tests/emu/%.c,$B/tests/%,$(wildcard tests/emu/test_*.c)) $(patsubst tests/unit/test_kernels%.c,$B/tests/test_cuda%,$(wildcard tests/unit/test_kernels*.c)))
MT_EMU   = $(CXX) -std=c++17 -x c++ -fPIC -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffp-contract=off -DMT_CUDA_EMU -DMT_PIECE=64 \
           -DMT_DRAW_THREADS=64 -Wall -Wextra -Wshadow -Wno-unknown-pragmas $(if $(CI),-Werror) -Itests/emu -Ilib -I. $(PKG_CF) $(SANFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP

$B/emu/%.o: %.cu | $(FIRST)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  c++   $<")
	$Q$(MT_EMU) -c -o $@ $<

$B/emu/%.o: %.cc | $(FIRST)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  c++   $<")
	$Q$(MT_EMU) -c -o $@ $<

$B/emu/%.o: %.c | $(FIRST)
	@mkdir -p $(@D)
	@$(if $(V),,echo "  cc    $< (CUDA)")
	$Q$(CC) $(MT_CFLAGS) -DTEST_CUDA -Wno-unused-function $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$B/tests/test_emu: $B/emu/tests/emu/test_emu.o $(EMU_OBJ) $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

$B/tests/test_emu_%: $B/emu/tests/emu/test_emu_%.o $(EMU_OBJ) $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

$B/tests/test_cuda: $B/emu/tests/unit/test_kernels.o $(EMU_OBJ) $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

$B/tests/test_cuda_%: $B/emu/tests/unit/test_kernels_%.o $(EMU_OBJ) $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

# The emulation as a plugin: programs meet a card by MT_CUDA_PLUGIN where there is none.
EMU_PLUGIN := $(if $(findstring thread,$(SAN)),,$B/emu/libmetronome-cuda.so)
$B/emu/libmetronome-cuda.so: $(EMU_OBJ) $(PLUGIN_LIB)
	@$(if $(V),,echo "  link  $@")
	$Q$(CXX) -shared $(SANFLAGS) -o $@ $^ -lm

# ---- checks on a card ----

# What measures on any backend, and what needs nvcc: ceilings and the kernels' tests over the plugin.
CARD     := $B/gpu-measure
CARD_CUDA := $B/gpu-ceiling $(patsubst tests/unit/test_kernels%.c,$B/tests/test_card%,$(wildcard tests/unit/test_kernels*.c))
GOLDEN   := $(addprefix $B/tests/test_,golden minicpm mimi moshi)

$B/gpu-measure: $(patsubst %,$B/tests/card/%.o,measure card step play) $(LIB)
	$(LINK) $(MT_LIBS)

$B/gpu-ceiling: $B/cuda/tests/card/ceiling.o
	@$(if $(V),,echo "  link  $@")
	$Q$(NVCC) $(NVCC_LINK) -o $@ $^ -lcublas -Xlinker -rpath,$(CUDA_HOME)/lib64

$B/tests/test_card: $B/emu/tests/unit/test_kernels.o $B/tests/card/open.o $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

$B/tests/test_card_%: $B/emu/tests/unit/test_kernels_%.o $B/tests/card/open.o $(LIB)
	$(LINK) -lcmocka $(MT_LIBS)

gpu-bundle: all $(CARD) $(CARD_CUDA) $(GOLDEN) ## everything that gpu-check needs on a bare machine, in build/gpu-bundle (with CUDA=1)
	@tests/card/bundle $B build/gpu-bundle

gpu-check: gpu-bundle ## what a card does and how fast, eight minutes at most: NDJSON into OUT (build/gpu)
	@build/gpu-bundle/gpu-check $(or $(OUT),build/gpu)

# ---- what people and CI run ----

deps: ## install the Debian packages that building, testing and the demo need
	@.ci/apt $(DEPS)

deps-test: | $(filter deps,$(MAKECMDGOALS)) ## install what tests use besides, if it is there: HAProxy, Prometheus, curl
	@.ci/apt $(DEPS_TEST)

deps-dev: ## install what lint and fuzz need besides
	@.ci/apt $(DEPS_DEV)

demo: all | $(FIRST) ## a minute and a half of what metronome is for, from real speech to a collapse foretold
	@PATH="$(CURDIR)/$B:$$PATH" tools/experiments/demo build/demo

experiments: all | $(FIRST) ## every finding of the paper on one page, live and at its scale: about three quarters of an hour
	@PATH="$(CURDIR)/$B:$$PATH" tools/experiments/all

check: all headers $(UNIT) $(EMU_TEST) $(EMU_PLUGIN) $(CARD) $(REPLAY) | $(FIRST) ## build and run all tests (SAN=address,undefined or SAN=thread; JOBS=N)
	@PATH="$(CURDIR)/$B:$$PATH" MT_TESTS="$(CURDIR)/tests" MT_SAN="$(SAN)" JOBS=$(JOBS) tests/run $B/check \
		$(UNIT) $(EMU_TEST) $(REPLAY) $(BATS)

headers: | $(FIRST) # each public header compiles alone
	@for h in $(HEADERS); do $(CC) $(MT_CFLAGS) -fsyntax-only -x c -include $$h /dev/null || exit 1; done

bench: $(BENCH) ## the benches, some three minutes: shares of what the machine gives, tokens a second, sessions on the beat
	@set -e; for b in $(BENCH); do echo "== $$b" >&2; $$b; done

fuzz: ## fuzz each parser for FUZZ_SECONDS (10), with clang
	$Q$(MAKE) --no-print-directory CC=clang B=build/fuzz SAN=fuzzer-no-link,address,undefined CFLAGS="-O1 -g" WARN=-Wno-unknown-warning-option \
		FUZZ_SECONDS=$(FUZZ_SECONDS) fuzz-programs

fuzz-programs: $(FUZZ:%=$B/tests/%)
	@set -e; for f in $(FUZZ); do \
		echo "== $$f, $(FUZZ_SECONDS) s"; mkdir -p $B/corpus/$$f $B/crashes; \
		LSAN_OPTIONS=suppressions=tests/lsan.supp:print_suppressions=0 $B/tests/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=$B/crashes/$$f- $B/corpus/$$f tests/fuzz/corpus/$${f#fuzz_}; \
	done

LINTERS  := clang-format clang-tidy cppcheck shellcheck mandoc
C_FILES  := $(shell find lib kernels tools tests -name '*.[ch]')
CXX_FILES := $(shell find kernels tests -name '*.cu' -o -name '*.cc')

lint: lint-tools $(patsubst %.c,$B/%.tidy,$(filter %.c,$(C_FILES))) headers ## formatting, static analysis, scripts, man pages
	clang-format --dry-run -Werror $(C_FILES) $(CXX_FILES)
	@# Not the unit tests: it does not know that a failed cmocka assertion never returns.
	cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		-Ilib -I. $(filter-out tests/unit/%,$(filter %.c,$(C_FILES)))
	shellcheck -x $(SCRIPTS)
	shellcheck -x $(BATS)
	shellcheck -s bash $(COMP)
	@! mandoc -T lint -W warning $(MAN) | grep -v 'lacks .* entry' | grep .

.PHONY: lint-tools
lint-tools: | $(FIRST)
	@lack=; for t in $(LINTERS); do command -v $$t >/dev/null || lack="$$lack $$t"; done; \
	[ -z "$$lack" ] || { echo "make lint: not installed:$$lack (make deps-dev installs them)" >&2; exit 1; }

$B/%.tidy: %.c $(filter %.h,$(C_FILES)) .clang-tidy | lint-tools
	@mkdir -p $(@D)
	@$(if $(V),,echo "  tidy  $<")
	$Qclang-tidy --quiet --warnings-as-errors='*' $< -- $(MT_CFLAGS) $(ISA) 2>$@.err || { cat $@.err; exit 1; }
	@mv $@.err $@

# ---- installing ----

# Not what makes the tiny model: it needs the source folder around it.
CONTRIB  := $(filter-out contrib/tiny/%,$(wildcard contrib/*/*))
MODEL    := $(wildcard share/metronome/tiny/*)
INSTALLED = $(TOOLS:$B/%=$(bindir)/%) $(PLUGIN:$B/%=$(plugindir)/%) $(COMP:completions/%=$(compdir)/%) $(docdir)/README.md $(docdir)/LICENSE \
            $(addprefix $(docdir)/,$(CONTRIB)) $(MODEL:share/metronome/%=$(pkgdatadir)/%) \
            $(foreach m,$(MAN),$(mandir)/man$(subst .,,$(suffix $m))/$(notdir $m))

install: all ## install under prefix (/usr/local), honouring DESTDIR
	@for f in $(INSTALLED); do \
		case $$f in \
		$(bindir)/*)  from=$B/$${f##*/} mode=755 ;; \
		$(plugindir)/*) from=$B/$${f##*/} mode=755 ;; \
		$(compdir)/*) from=completions/$${f##*/} mode=644 ;; \
		$(mandir)/*)  from=man/$${f##*/} mode=644 ;; \
		$(pkgdatadir)/*) from=share/metronome/$${f#$(pkgdatadir)/} mode=644 ;; \
		$(docdir)/contrib/*) from=contrib/$${f#*/contrib/} mode=644 ;; \
		*)            from=$${f##*/} mode=644 ;; \
		esac; \
		echo "  install $(DESTDIR)$$f"; \
		install -D -m $$mode $$from "$(DESTDIR)$$f" || exit 1; \
	done

uninstall: ## remove exactly what install put there
	@for f in $(INSTALLED); do echo "  remove $(DESTDIR)$$f"; rm -f "$(DESTDIR)$$f"; done
	@rmdir $(patsubst %,"$(DESTDIR)$(docdir)/%",$(sort $(dir $(CONTRIB))) contrib) "$(DESTDIR)$(docdir)" "$(DESTDIR)$(pkgdatadir)/tiny" "$(DESTDIR)$(pkgdatadir)" 2>/dev/null || true

deb: all ## a Debian package of it, in build/deb (needs dpkg-dev; lintian looks at it)
	@packaging/deb $B/deb

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## */  \1\t/p' Makefile | expand -t 14

-include $(shell find $B -type f -name '*.d' 2>/dev/null)

# metronome: plain GNU make. Everything it makes lies in build/.

CC       ?= cc
CFLAGS   ?= -O2 -g
prefix   ?= /usr/local
comma    := ,
B        := build$(if $(SAN),/san-$(subst $(comma),-,$(SAN)))

PKGS     := sndfile soxr kissfft-float jansson libpcre2-8 libuv libutf8proc
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
            -Wwrite-strings -Wvla -Wno-psabi $(if $(CI),-Werror)
MT_CFLAGS = -std=gnu17 -D_GNU_SOURCE -pthread -fopenmp -fno-math-errno -ffp-contract=off $(WARN) -Ilib -I. \
            $(shell pkg-config --cflags $(PKGS)) $(SANFLAGS)
MT_LIBS   = $(shell pkg-config --libs $(PKGS)) -lm -pthread -fopenmp
SANFLAGS  = $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)

LIB_SRC  := $(wildcard lib/*/*.c kernels/cpu/*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$B/%.o)
LIB      := $B/libmetronome.a
TOOLS    := $(patsubst tools/%.c,$B/%,$(wildcard tools/mt-*.c))
UNIT     := $(patsubst tests/unit/%.c,$B/tests/%,$(wildcard tests/unit/test_*.c))

.PHONY: all check lint clean help
all: $(TOOLS)

$B/kernels/cpu/%_avx2.o:   ISA := -mavx2 -mfma -mf16c
$B/kernels/cpu/%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
$B/kernels/cpu/%.o: OPT := -O3

$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(MT_CFLAGS) $(CFLAGS) $(OPT) $(ISA) -MMD -MP -c -o $@ $<

$(LIB): $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$B/mt-%: $B/tools/mt-%.o $(LIB)
	$(CC) $(CFLAGS) $(SANFLAGS) $(LDFLAGS) -o $@ $^ $(MT_LIBS)

$B/tests/%: $B/tests/unit/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SANFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(MT_LIBS)

unit: $(UNIT)
	@set -e; for t in $(UNIT); do echo "== $$t"; $$t; done

check: all unit

clean:
	rm -rf build

-include $(shell find $B -name '*.d' 2>/dev/null)
.SECONDARY:

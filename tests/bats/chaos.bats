#!/usr/bin/env bats
# A short night of tests/chaos, the same each time: it says itself what is wrong.

load helper

@test "chaos: whatever happens, every frame has its record and the metrics are the records' sums" {
  command -v curl >/dev/null || skip "no curl"
  run -0 "$MT_TESTS/chaos" 9 12
  [[ "$output" == *"the books were compared"* ]]
}

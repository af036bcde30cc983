# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 by Intel's tile registers (AMX), which TVM 0.27 knows nothing of.

Eight registers hold 16 rows of 64 bytes. One instruction multiplies two of them, 16 x 32 by 32 x 16
numbers, and adds to a third: 16 float32 sums of rows by columns. A product here is 32 x 32: four
registers of sums, two for the left operand, two for the right one.

Written in LLVM IR and imported into a kernel by a pragma, as `bf16/helpers.py`. What works in
tiles calls `begin` first and `end` last, once for a task: both cost some hundred cycles, and tiles
left in use would have to be saved whenever the system switches threads. Afterwards they hold
nothing.

Operands are rows of numbers for the left and rows of pairs for the right one, padded with zeros to
whole steps of 32 in `k`. Sums of even and of odd `k` within a step are added apart; denormal
numbers count as zero. Strides are bytes.
"""

SIDE = 32  # rows and columns of a product, and the numbers of `k` in a step
_HALF = SIDE // 2
_PAIRS_BYTES = SIDE * 4  # a row of the right operand: 32 columns of pairs
_ALL_ROWS = "1157442765409226768"  # 16 in each of eight bytes

_DECLARATIONS = """
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8)
declare void @llvm.x86.tileloadd64(i8, ptr, i64)
declare void @llvm.x86.tilestored64(i8, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8, i8, i8)
"""

# The eight bytes at 48 are the rows of each register; 64 bytes in a row.
_BEGIN_AND_END = f"""
define linkonce_odr i32 @sparsetrain_amx_rows(i64 %rows) alwaysinline nounwind {{
  %form = alloca [64 x i8], align 64
  %widths = getelementptr i8, ptr %form, i64 16
  %heights = getelementptr i8, ptr %form, i64 48
  store <64 x i8> zeroinitializer, ptr %form, align 64
  store i8 1, ptr %form, align 64
  store <8 x i16> splat (i16 64), ptr %widths, align 16
  store i64 %rows, ptr %heights, align 16
  call void @llvm.x86.ldtilecfg(ptr %form)
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_amx_begin() alwaysinline nounwind {{
  %done = call i32 @sparsetrain_amx_rows(i64 {_ALL_ROWS})
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_amx_end() alwaysinline nounwind {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""


def _name(rows: int, columns: int) -> str:
    return f"@sparsetrain_amx_sum_{rows}x{columns}"


def _sum(rows: int, columns: int) -> str:
    """The sum over all steps, of `rows` x `columns` registers."""
    sums = [(i, j, 2 * i + j) for i in range(rows) for j in range(columns)]
    loads = [
        f"call void @llvm.x86.tileloadd64(i8 {4 + i}, ptr %left{i}, i64 %stride)"
        for i in range(rows)
    ] + [
        f"call void @llvm.x86.tileloadd64(i8 {6 + j}, ptr %right{j}, i64 {_PAIRS_BYTES})"
        for j in range(columns)
    ]
    adds = [f"call void @llvm.x86.tdpbf16ps(i8 {n}, i8 {4 + i}, i8 {6 + j})" for i, j, n in sums]
    stores = [
        f"""%at{n} = getelementptr i8, ptr %to, i64 {_HALF * _PAIRS_BYTES * i + 4 * _HALF * j}
  call void @llvm.x86.tilestored64(i8 {n}, ptr %at{n}, i64 {_PAIRS_BYTES})"""
        for i, j, n in sums
    ]
    zeros = [f"call void @llvm.x86.tilezero(i8 {n})" for _, _, n in sums]
    zero_all, add_all, store_all = map("\n  ".join, (zeros, [*loads, *adds], stores))
    return f"""
define linkonce_odr void {_name(rows, columns)}(
    ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps) noinline nounwind {{
start:
  %below = shl i64 %stride, 4
  {zero_all}
  br label %next
next:
  %n = phi i64 [ 0, %start ], [ %more, %add ]
  %going = icmp slt i64 %n, %steps
  br i1 %going, label %add, label %store
add:
  %along = mul i64 %n, %step
  %down = mul i64 %n, {_HALF * _PAIRS_BYTES}
  %left0 = getelementptr i8, ptr %left, i64 %along
  %left1 = getelementptr i8, ptr %left0, i64 %below
  %right0 = getelementptr i8, ptr %right, i64 %down
  %right1 = getelementptr i8, ptr %right0, i64 {4 * _HALF}
  {add_all}
  %more = add i64 %n, 1
  br label %next
store:
  {store_all}
  ret void
}}
"""


# A product of up to 32 x 32. The right operand lies in rows of 32 pairs, 128 bytes; the left one in
# rows `stride` apart, a step `step` from the last; `to` is 32 x 32 float32. Where `ends` is not 0,
# the left operand's memory ends with `rows`: no row below is read.
_PRODUCT = f"""
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
define linkonce_odr i32 @sparsetrain_amx_product(
    ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps,
    i32 %few_rows, i32 %few_columns, i32 %ends) alwaysinline nounwind {{
start:
  %rows = sext i32 %few_rows to i64
  %columns = sext i32 %few_columns to i64
  %none = icmp slt i64 %rows, 1
  br i1 %none, label %done, label %shape
shape:
  %few = icmp slt i64 %rows, {SIDE}
  %cut = icmp ne i32 %ends, 0
  %partial = and i1 %few, %cut
  br i1 %partial, label %narrow, label %choose
narrow:
  %high = call i64 @llvm.smin.i64(i64 %rows, i64 {_HALF})
  %left_over = sub i64 %rows, {_HALF}
  %low = call i64 @llvm.smax.i64(i64 %left_over, i64 1)
  %highs = mul i64 %high, {0x1_0000_0101}
  %lows = mul i64 %low, {0x100_0101_0000}
  %both = or i64 %highs, %lows
  %form = or i64 %both, {0x1010_0000_0000_0000}
  %set = call i32 @sparsetrain_amx_rows(i64 %form)
  br label %choose
choose:
  %tall = icmp sgt i64 %rows, {_HALF}
  %wide = icmp sgt i64 %columns, {_HALF}
  %tall_bit = zext i1 %tall to i32
  %wide_bit = zext i1 %wide to i32
  %twice = shl i32 %tall_bit, 1
  %kind = or i32 %twice, %wide_bit
  switch i32 %kind, label %sum3 [ i32 0, label %sum0 i32 1, label %sum1 i32 2, label %sum2 ]
{
    "".join(
        f'''sum{kind}:
  call void {_name(1 + kind // 2, 1 + kind % 2)}(
      ptr %to, ptr %left, i64 %stride, i64 %step, ptr %right, i64 %steps)
  br label %after
'''
        for kind in range(4)
    )
}after:
  br i1 %partial, label %restore, label %done
restore:
  %reset = call i32 @sparsetrain_amx_begin()
  br label %done
done:
  ret i32 0
}}
"""


BEGIN_AND_END = _DECLARATIONS + _BEGIN_AND_END
PRODUCT = "".join(_sum(rows, columns) for rows in (1, 2) for columns in (1, 2)) + _PRODUCT

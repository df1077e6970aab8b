/* Copies between scattered blocks of a cache and contiguous staging memory, as few copies as the block ids allow. */
#include <stdbool.h>
#include <stddef.h>

#include "seqshift_cann.h"

/* Limits of aclrtMemcpy2dAsync. */
#define MAX_WIDTH 5000000u
#define MAX_ROWS 5242880u

typedef struct Copier {
    const SeqshiftSymbols *symbols;
    CannStream stream;
    SeqshiftCopyState *state;
    int32_t direction;
} Copier;

static CannError copyBytes(const Copier *to, char *block, char *staging, size_t bytes)
{
    bool gather = to->direction == SEQSHIFT_GATHER;
    CannError code = to->symbols->aclrtMemcpyAsync(gather ? staging : block, bytes, gather ? block : staging, bytes,
                                                   CANN_COPY_DEVICE_TO_DEVICE, to->stream);

    if (code == CANN_OK) {
        to->state->copies += 1;
        to->state->bytes += bytes;
    }
    return code;
}

static bool refuses2d(CannError code)
{
    return code == CANN_INVALID_PARAM || code == CANN_RT_PARAM_INVALID || code == CANN_API_NOT_SUPPORT ||
           code == CANN_FEATURE_UNSUPPORTED || code == CANN_RT_FEATURE_NOT_SUPPORT;
}

/* Rows `pitch` bytes apart; one copy each where this CANN has no two-dimensional copy on the device. */
static CannError copyRows(const Copier *to, char *block, size_t pitch, char *staging, size_t width, size_t rows)
{
    if (rows > 1 && width <= MAX_WIDTH && to->state->refused2d == 0) {
        bool gather = to->direction == SEQSHIFT_GATHER;
        CannError code =
            gather ? to->symbols->aclrtMemcpy2dAsync(staging, width, block, pitch, width, rows,
                                                     CANN_COPY_DEVICE_TO_DEVICE, to->stream)
                   : to->symbols->aclrtMemcpy2dAsync(block, pitch, staging, width, width, rows,
                                                     CANN_COPY_DEVICE_TO_DEVICE, to->stream);

        if (code == CANN_OK) {
            to->state->copies2d += 1;
            to->state->bytes += width * rows;
            return code;
        }
        if (!refuses2d(code)) {
            return code;
        }
        /* Parameters were checked before: it is the kind of copy that is refused, now and from now on. */
        to->state->refused2d = 1;
    }
    for (size_t row = 0; row < rows; row++) {
        CannError code = copyBytes(to, block + row * pitch, staging + row * width, width);

        if (code != CANN_OK) {
            return code;
        }
    }
    return CANN_OK;
}

/* How many blocks from the first on are one stretch of memory, upwards. */
static size_t runOf(const uint32_t *ids, size_t count, bool dense)
{
    size_t run = 1;

    while (dense && run < count && ids[run] > ids[run - 1] && ids[run] - ids[run - 1] == 1) {
        run++;
    }
    return run;
}

/* How many runs of `run` blocks, from the first on, begin at even distances, upwards. */
static size_t evenRuns(const uint32_t *ids, size_t count, size_t run, bool dense)
{
    size_t rows = 1;

    if (count < 2 * run || ids[run] < ids[0] || ids[run] - ids[0] < run) {
        return 1;
    }
    for (const uint32_t *row = ids + run; rows < MAX_ROWS && (rows + 1) * run <= count; row += run) {
        if (row[0] < row[-(ptrdiff_t)run] || row[0] - row[-(ptrdiff_t)run] != ids[run] - ids[0] ||
            runOf(row, count - rows * run, dense) != run) {
            break;
        }
        rows++;
    }
    return rows;
}

static bool inRange(const SeqshiftBlocks *cache, uint64_t begin, uint64_t length, const uint32_t *ids, size_t count,
                    size_t stagingBytes, int32_t direction)
{
    if (length == 0 || begin > cache->length || length > cache->length - begin || count > stagingBytes / length ||
        (direction != SEQSHIFT_GATHER && direction != SEQSHIFT_SCATTER)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= cache->blocks) {
            return false;
        }
    }
    return true;
}

CannError seqshiftCopyBlocks(const SeqshiftSymbols *symbols, const SeqshiftBlocks *cache, uint64_t begin,
                             uint64_t length, const uint32_t *ids, size_t count, void *staging, size_t stagingBytes,
                             int32_t direction, CannStream stream, SeqshiftCopyState *state)
{
    const Copier to = {symbols, stream, state, direction};
    /* Adjacent blocks are one stretch of memory. */
    const bool dense = cache->stride == length;
    char *at = staging;

    if (!inRange(cache, begin, length, ids, count, stagingBytes, direction)) {
        return CANN_INVALID_PARAM;
    }
    for (size_t i = 0; i < count;) {
        char *block = (char *)cache->base + ids[i] * cache->stride + begin;
        size_t run = runOf(ids + i, count - i, dense);
        size_t rows = evenRuns(ids + i, count - i, run, dense);
        uint64_t pitch = rows > 1 ? (ids[i + run] - ids[i]) * cache->stride : run * length;
        CannError code = copyRows(&to, block, pitch, at, run * length, rows);

        if (code != CANN_OK) {
            return code;
        }
        at += rows * run * length;
        i += rows * run;
    }
    return CANN_OK;
}

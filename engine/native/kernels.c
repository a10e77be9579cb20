/* The parts of a decoder that torch is slow at on a CPU: products of few rows, paged attention, small fused maps.
 *
 * Plain C with the vector types of GCC and Clang, which compile to whatever the machine has; only the bfloat16 dot
 * product and the conversion to bfloat16 name instructions, where those exist. Each function has a torch reference with
 * the same meaning in engine/layers.py or engine/attention/torch.py, and tests compare the two.
 *
 * What a row gets does not depend, to the last bit, on the other rows of the call or on how a prompt was cut: each sum is
 * taken in one fixed order over the row's own data.
 *
 * Tensors are contiguous unless a stride says otherwise. `half` says that their elements are bfloat16 rather than
 * float32. Sums run in float32 and results are rounded once. Letters: T tokens, N, K widths, D head width.
 */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float floats __attribute__((vector_size(64)));
typedef uint32_t words __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef float quad __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(32)));

/* ---- elements ---------------------------------------------------------------------------------------------------- */

INLINE float widen(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float y;
  memcpy(&y, &bits, 4);
  return y;
}

INLINE words load_words(const void *p) {
  words x;
  memcpy(&x, p, sizeof x);
  return x;
}

INLINE halves load_halves(const void *p) {
  halves x;
  memcpy(&x, p, sizeof x);
  return x;
}

INLINE floats splat(float x) { return x - (floats){}; }

INLINE floats select_floats(ints mask, floats yes, floats no) {
  return (floats)(((ints)yes & mask) | ((ints)no & ~mask));
}

/* Round to nearest even; NaN stays NaN. */
INLINE halves narrow(floats x) {
#ifdef __AVX512BF16__
  return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
  words bits = (words)x;
  words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  ints unordered = x != x;
  rounded = (rounded & (words)~unordered) | (0x7fc0 & (words)unordered);
  return __builtin_convertvector(rounded, halves);
#endif
}

INLINE floats load(const void *p, long i, int half) {
  if (half) return (floats)(__builtin_convertvector(load_halves((const uint16_t *)p + i), words) << 16);
  return (floats)load_words((const float *)p + i);
}

INLINE void store(void *p, long i, floats x, int half) {
  if (half) {
    halves y = narrow(x);
    memcpy((uint16_t *)p + i, &y, sizeof y);
  } else {
    memcpy((float *)p + i, &x, sizeof x);
  }
}

INLINE float load_one(const void *p, long i, int half) {
  return half ? widen(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE void store_one(void *p, long i, float x, int half) {
  if (half) {
    halves y = narrow(splat(x));
    ((uint16_t *)p)[i] = y[0];
  } else {
    ((float *)p)[i] = x;
  }
}

/* Per lane: sum += a.low * b.low + a.high * b.high, the halves of a word being two bfloat16. */
INLINE floats dot_pairs(floats sum, words a, words b) {
#ifdef __AVX512BF16__
  return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum += (floats)(a << 16) * (floats)(b << 16);
  return sum + (floats)(a & 0xffff0000u) * (floats)(b & 0xffff0000u);
#endif
}

INLINE float sum_lanes(floats x) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)x);
#else
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += x[i];
  return sum;
#endif
}

INLINE float max_lanes(floats x) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)x);
#else
  float most = x[0];
  for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

/* 2^x to about 1e-7; 0 below the normal numbers, infinity above the finite ones, NaN of NaN. The polynomial is 2^f on [-1/2, 1/2] (Taylor in f ln 2). */
INLINE floats exp2_lanes(floats x) {
  const floats rounder = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
  floats shifted = x + rounder;
  floats f = x - (shifted - rounder);
  floats y = splat(1.5403530e-4f);
  y = y * f + 1.3333558e-3f;
  y = y * f + 9.6181291e-3f;
  y = y * f + 5.5504109e-2f;
  y = y * f + 2.4022651e-1f;
  y = y * f + 6.9314718e-1f;
  y = y * f + 1.0f;
  ints exponent = (ints)shifted << 23; /* the low bits of `shifted` are the integer */
  y = (floats)((ints)y + exponent);
  y = select_floats(x < -126.0f, (floats){}, y);
  return select_floats(x > 127.0f, splat(INFINITY), y);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* A caller and its helpers share the items of a job, each taking the next one that is free. The caller waits only for
 * items that a helper has taken: a helper that gets no processor, on a machine busy with other things, delays nobody.
 * That, and idling for microseconds rather than milliseconds, is what OpenMP's runtimes do not offer. */
typedef void Work(const void *job, long item);

#define PATIENCE 3000          /* turns of waiting before a helper sleeps: some 40 microseconds */
#define NOTHING_LEFT 0xffffffff /* no job has this many items */

typedef struct {
  _Atomic uint64_t next; /* number of the job in the upper half, next free item in the lower */
  _Alignas(64) atomic_long finished;
  Work *_Atomic work;
  const void *_Atomic job;
  atomic_long items;
  atomic_int asleep, ending;
  pthread_mutex_t lock;
  pthread_cond_t called;
  int helpers;
  pthread_t threads[];
} Crew;

INLINE void pause_briefly(void) {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

static int has_items(Crew *crew) { return (long)(uint32_t)atomic_load(&crew->next) < atomic_load(&crew->items); }

/* Take and do items while there are any. Says whether there was one. What is read of a job is of use only if taking the
 * item succeeds: `next` says "nothing left" before a job's fields change, and a job's number never comes back. */
static int take_items(Crew *crew) {
  int any = 0;
  uint64_t next = atomic_load(&crew->next);
  for (;;) {
    Work *work = atomic_load(&crew->work);
    const void *job = atomic_load(&crew->job);
    if ((long)(uint32_t)next >= atomic_load(&crew->items)) return any;
    if (!atomic_compare_exchange_weak(&crew->next, &next, next + 1)) continue;
    work(job, (long)(uint32_t)next);
    atomic_fetch_add(&crew->finished, 1);
    any = 1;
    next = atomic_load(&crew->next);
  }
}

static void *help(void *argument) {
  Crew *crew = argument;
  int idle = 0;
  while (!atomic_load(&crew->ending)) {
    if (take_items(crew)) {
      idle = 0;
    } else if (++idle < PATIENCE) {
      pause_briefly();
    } else {
      pthread_mutex_lock(&crew->lock);
      atomic_fetch_add(&crew->asleep, 1); /* before looking once more, so that a caller who comes now sees it */
      while (!has_items(crew) && !atomic_load(&crew->ending)) pthread_cond_wait(&crew->called, &crew->lock);
      atomic_fetch_sub(&crew->asleep, 1);
      pthread_mutex_unlock(&crew->lock);
      idle = 0;
    }
  }
  return 0;
}

static void call_helpers(Crew *crew) {
  if (!atomic_load(&crew->asleep)) return;
  pthread_mutex_lock(&crew->lock);
  pthread_cond_broadcast(&crew->called);
  pthread_mutex_unlock(&crew->lock);
}

/* Do every item of a job. One caller at a time. */
static void share(Crew *crew, long items, Work *work, const void *job) {
  if (items == 1 || !crew->helpers) {
    for (long item = 0; item < items; item++) work(job, item);
    return;
  }
  atomic_store(&crew->work, work);
  atomic_store(&crew->job, job);
  atomic_store(&crew->items, items);
  atomic_store(&crew->finished, 0);
  const uint64_t number = ((atomic_load(&crew->next) >> 32) + 1) << 32;
  atomic_store(&crew->next, number);
  call_helpers(crew);
  take_items(crew);
  for (int turn = 0; atomic_load(&crew->finished) < items; turn++)
    if (turn < PATIENCE) pause_briefly();
    else sched_yield(); /* to the helper, if it is waiting for this very processor */
  atomic_store(&crew->next, number | NOTHING_LEFT);
}

void headwater_stop(Crew *crew) {
  atomic_store(&crew->ending, 1);
  pthread_mutex_lock(&crew->lock);
  pthread_cond_broadcast(&crew->called);
  pthread_mutex_unlock(&crew->lock);
  for (int i = 0; i < crew->helpers; i++) pthread_join(crew->threads[i], 0);
  free(crew);
}

/* A crew of the caller and `helpers` more, or of as many as can be had; null without memory. Ends with headwater_stop. */
Crew *headwater_start(int helpers) {
  const size_t size = sizeof(Crew) + (size_t)helpers * sizeof(pthread_t);
  Crew *crew = aligned_alloc(64, (size + 63) / 64 * 64);
  if (!crew) return 0;
  memset(crew, 0, size);
  atomic_store(&crew->next, NOTHING_LEFT);
  pthread_mutex_init(&crew->lock, 0);
  pthread_cond_init(&crew->called, 0);
  while (crew->helpers < helpers && !pthread_create(&crew->threads[crew->helpers], 0, help, crew)) crew->helpers++;
  return crew;
}

/* Rows that make an item worth handing over, of T rows of so many elements. */
#define ITEM_ELEMENTS 4096

INLINE long rows_per_item(long elements) { return elements >= ITEM_ELEMENTS ? 1 : ITEM_ELEMENTS / elements; }

/* ---- linear: out[T, N] = x[T, K] weight[N, K]^T + bias[N], bfloat16, K a multiple of 32 ---------------------------- */

#define BLOCK 4      /* rows and outputs whose sums are kept in registers together */
#define OUT_CHUNK 32 /* outputs a thread takes at a time */

/* The four sums over all lanes of a, b, c and d. */
INLINE quad sum_four(floats a, floats b, floats c, floats d) {
  floats ab = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
              __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  floats cd = __builtin_shufflevector(c, d, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
              __builtin_shufflevector(c, d, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  floats all = __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  quad part[4];
  memcpy(part, &all, sizeof all);
  return (part[0] + part[1]) + (part[2] + part[3]);
}

/* rows x BLOCK dot products of length K. `ahead` are the weights wanted next, brought near meanwhile; may be null. */
INLINE void dots(const uint16_t *x, const uint16_t *w, const uint16_t *ahead, long K, quad sums[BLOCK], const int rows) {
  floats acc[BLOCK][BLOCK] = {};
  for (long k = 0; k < K; k += 2 * LANES) {
    words wk[BLOCK];
    for (int o = 0; o < BLOCK; o++) {
      wk[o] = load_words(w + o * K + k);
      if (ahead) __builtin_prefetch(ahead + o * K + k);
    }
    for (int r = 0; r < rows; r++) {
      words xk = load_words(x + r * K + k);
      for (int o = 0; o < BLOCK; o++) acc[r][o] = dot_pairs(acc[r][o], xk, wk[o]);
    }
  }
  for (int r = 0; r < rows; r++) sums[r] = sum_four(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
}

/* One dot product, for the outputs that are left over when N is not a multiple of BLOCK. */
INLINE float dot(const uint16_t *x, const uint16_t *w, long K) {
  floats acc = {};
  for (long k = 0; k < K; k += 2 * LANES) acc = dot_pairs(acc, load_words(x + k), load_words(w + k));
  return sum_lanes(acc);
}

INLINE void store_quad(void *p, long i, quad x, int wide) {
  if (wide) {
    memcpy((float *)p + i, &x, sizeof x);
  } else {
    halves y = narrow((floats){x[0], x[1], x[2], x[3]});
    memcpy((uint16_t *)p + i, &y, 4 * sizeof(uint16_t));
  }
}

typedef struct {
  const uint16_t *x, *weight, *bias;
  void *out;
  long T, N, K;
  int wide;
} Linear;

/* OUT_CHUNK columns of the result. */
static void linear_item(const void *job, long item) {
  const Linear *l = job;
  const long T = l->T, N = l->N, K = l->K;
  long n = item * OUT_CHUNK, end = n + OUT_CHUNK < N ? n + OUT_CHUNK : N;
  for (; n + BLOCK <= end; n += BLOCK) {
    const uint16_t *w = l->weight + n * K, *b = l->bias ? l->bias + n : 0;
    const uint16_t *next = n + 2 * BLOCK <= end ? w + BLOCK * K : 0;
    quad offset = {};
    if (b) offset = (quad){widen(b[0]), widen(b[1]), widen(b[2]), widen(b[3])};
    for (long t = 0; t < T; t += BLOCK) {
      const uint16_t *rows = l->x + t * K, *ahead = t == 0 ? next : 0;
      quad sums[BLOCK] = {};
      switch (T - t) {
        case 1: dots(rows, w, ahead, K, sums, 1); break;
        case 2: dots(rows, w, ahead, K, sums, 2); break;
        case 3: dots(rows, w, ahead, K, sums, 3); break;
        default: dots(rows, w, ahead, K, sums, 4);
      }
      for (long r = 0; r < BLOCK && t + r < T; r++) store_quad(l->out, (t + r) * N + n, sums[r] + offset, l->wide);
    }
  }
  for (; n < end; n++)
    for (long t = 0; t < T; t++)
      store_one(l->out, t * N + n, dot(l->x + t * K, l->weight + n * K, K) + (l->bias ? widen(l->bias[n]) : 0), !l->wide);
}

/* `wide` results are float32. */
void headwater_linear(Crew *crew, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, void *out, long T, long N,
                      long K, int wide) {
  const Linear job = {x, weight, bias, out, T, N, K, wide};
  share(crew, (N + OUT_CHUNK - 1) / OUT_CHUNK, linear_item, &job);
}

/* ---- maps -------------------------------------------------------------------------------------------------------- */

INLINE float scale_of(const void *x, long N, float eps, int half) {
  floats acc = {};
  float sum = 0;
  long i = 0;
  for (; i + LANES <= N; i += LANES) {
    floats v = load(x, i, half);
    acc += v * v;
  }
  for (; i < N; i++) sum += load_one(x, i, half) * load_one(x, i, half);
  return 1.0f / sqrtf((sum + sum_lanes(acc)) / (float)N + eps);
}

INLINE void norm_row(const void *x, void *residual, const void *weight, void *out, long N, float eps, int half) {
  long i = 0;
  if (residual) {
    for (; i + LANES <= N; i += LANES) store(residual, i, load(residual, i, half) + load(x, i, half), half);
    for (; i < N; i++) store_one(residual, i, load_one(residual, i, half) + load_one(x, i, half), half);
    x = residual;
  }
  float scale = scale_of(x, N, eps, half);
  for (i = 0; i + LANES <= N; i += LANES) store(out, i, load(x, i, half) * scale * load(weight, i, half), half);
  for (; i < N; i++) store_one(out, i, load_one(x, i, half) * scale * load_one(weight, i, half), half);
}

typedef struct {
  const char *x;
  char *residual;
  const void *weight;
  char *out;
  long T, N;
  float eps;
  int half;
} Norm;

static void norm_item(const void *job, long item) {
  const Norm *n = job;
  const long row = n->N * (n->half ? 2 : 4), rows = rows_per_item(n->N);
  for (long t = item * rows; t < (item + 1) * rows && t < n->T; t++) {
    char *r = n->residual ? n->residual + t * row : 0;
    if (n->half) norm_row(n->x + t * row, r, n->weight, n->out + t * row, n->N, n->eps, 1);
    else norm_row(n->x + t * row, r, n->weight, n->out + t * row, n->N, n->eps, 0);
  }
}

/* out = rms_norm(x) * weight, or with a residual: residual += x; out = rms_norm(residual) * weight. All [T, N]. */
void headwater_rms_norm(Crew *crew, const char *x, char *residual, const void *weight, char *out, long T, long N, float eps,
                        int half) {
  const Norm job = {x, residual, weight, out, T, N, eps, half};
  const long rows = rows_per_item(N);
  share(crew, (T + rows - 1) / rows, norm_item, &job);
}

INLINE floats silu(floats x) { return x / (1.0f + exp2_lanes(x * -1.44269504f)); }

INLINE void silu_row(const char *gate, const char *up, char *out, long N, int half) {
  long i = 0;
  for (; i + LANES <= N; i += LANES) store(out, i, silu(load(gate, i, half)) * load(up, i, half), half);
  for (; i < N; i++) store_one(out, i, silu(splat(load_one(gate, i, half)))[0] * load_one(up, i, half), half);
}

typedef struct {
  const char *gate_up;
  char *out;
  long T, N;
  int half;
} SiluMul;

static void silu_item(const void *job, long item) {
  const SiluMul *s = job;
  const long row = s->N * (s->half ? 2 : 4), rows = rows_per_item(s->N);
  for (long t = item * rows; t < (item + 1) * rows && t < s->T; t++) {
    const char *gate = s->gate_up + 2 * t * row;
    if (s->half) silu_row(gate, gate + row, s->out + t * row, s->N, 1);
    else silu_row(gate, gate + row, s->out + t * row, s->N, 0);
  }
}

/* out[T, N] = silu(gate_up[T, :N]) * gate_up[T, N:] */
void headwater_silu_mul(Crew *crew, const char *gate_up, char *out, long T, long N, int half) {
  const SiluMul job = {gate_up, out, T, N, half};
  const long rows = rows_per_item(N);
  share(crew, (T + rows - 1) / rows, silu_item, &job);
}

/* ---- attention over pages ---------------------------------------------------------------------------------------- */

#define MAX_WIDTH 256 /* of a head */
#define TILE 32       /* query vectors that are worked on together: tokens times the heads that share a key head */
#define KEYS 64       /* positions that are worked on together */

/* `keys` and `values` are [pages, kv_heads, page_size, D]. */
typedef struct {
  char *keys, *values;
  int kv_heads, page_size, width, half;
} Pages;

INLINE long place(const Pages *p, long page, int head, long offset) {
  return ((page * p->kv_heads + head) * p->page_size + offset) * p->width;
}

/* Norm (if `weight`) and rotate one head: x [D] -> out [D]. Dimension i turns with i + D / 2. */
INLINE void rotate(const void *x, void *out, const void *weight, float eps, const float *cosines, const float *sines, int D,
                   int half) {
  float v[MAX_WIDTH];
  float scale = weight ? scale_of(x, D, eps, half) : 1.0f;
  for (int i = 0; i < D; i++) v[i] = load_one(x, i, half) * scale * (weight ? load_one(weight, i, half) : 1.0f);
  float turned[MAX_WIDTH + LANES];
  for (int i = 0; i < D / 2; i++) {
    turned[i] = v[i] * cosines[i] - v[i + D / 2] * sines[i];
    turned[i + D / 2] = v[i + D / 2] * cosines[i] + v[i] * sines[i];
  }
  for (int i = 0; i < D; i += LANES) store(out, i, load(turned, i, 0), half); /* D is a multiple of LANES */
}

typedef struct {
  char *qkv;
  const Pages *pages;
  const void *query_norm, *key_norm;
  float eps;
  const float *cosines, *sines;
  const int64_t *slots;
  long T;
  int heads;
} Store;

INLINE void store_token(const Store *j, long t, const int half) {
  const int D = j->pages->width, kv_heads = j->pages->kv_heads, size = half ? 2 : 4;
  const float *c = j->cosines + t * (D / 2), *s = j->sines + t * (D / 2);
  char *x = j->qkv + t * (j->heads + 2L * kv_heads) * D * size;
  for (int h = 0; h < j->heads; h++, x += D * size) rotate(x, x, j->query_norm, j->eps, c, s, D, half);
  for (int h = 0; h < kv_heads; h++, x += D * size) {
    long at = place(j->pages, j->slots[t] / j->pages->page_size, h, j->slots[t] % j->pages->page_size) * size;
    rotate(x, j->pages->keys + at, j->key_norm, j->eps, c, s, D, half);
    memcpy(j->pages->values + at, x + (long)kv_heads * D * size, D * size);
  }
}

static void store_item(const void *job, long item) {
  const Store *j = job;
  const long rows = rows_per_item((j->heads + 2L * j->pages->kv_heads) * j->pages->width);
  for (long t = item * rows; t < (item + 1) * rows && t < j->T; t++) {
    if (j->pages->half) store_token(j, t, 1);
    else store_token(j, t, 0);
  }
}

/* Queries of qkv [T, (heads + 2 kv_heads) * D] are normed and rotated in place, keys likewise into their pages, values
 * copied there. slots[T] are page * page_size + offset; cosines and sines are [T, D / 2]. */
void headwater_store(Crew *crew, char *qkv, const Pages *pages, const void *query_norm, const void *key_norm, float eps,
                     const float *cosines, const float *sines, const int64_t *slots, long T, int heads) {
  const Store job = {qkv, pages, query_norm, key_norm, eps, cosines, sines, slots, T, heads};
  const long rows = rows_per_item((heads + 2L * pages->kv_heads) * pages->width);
  share(crew, (T + rows - 1) / rows, store_item, &job);
}

/* Products run over words: a word is two bfloat16 or one float32, so that one lane of one instruction takes a word of
 * each side. `words_of(D)` of them make a head. */
INLINE int words_of(int n, int half) { return half ? n / 2 : n; }

INLINE floats multiply_words(floats sum, uint32_t a, words b, int half) {
  words all = a + (words){};
  return half ? dot_pairs(sum, all, b) : sum + (floats)all * (floats)b;
}

/* rows x (outs * LANES) sums: c += a[rows, depth] b[depth, :]. Strides are in words. */
INLINE void product_block(const uint32_t *a, long lda, const uint32_t *b, long ldb, float *c, long ldc, int depth,
                          const int rows, const int outs, int half) {
  floats acc[4][4];
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < outs; o++) acc[r][o] = load(c, r * ldc + o * LANES, 0);
  for (int k = 0; k < depth; k++) {
    words bk[4];
    for (int o = 0; o < outs; o++) bk[o] = load_words(b + k * ldb + o * LANES);
    for (int r = 0; r < rows; r++)
      for (int o = 0; o < outs; o++) acc[r][o] = multiply_words(acc[r][o], a[r * lda + k], bk[o], half);
  }
  for (int r = 0; r < rows; r++)
    for (int o = 0; o < outs; o++) store(c, r * ldc + o * LANES, acc[r][o], 0);
}

INLINE void product_rows(const uint32_t *a, long lda, const uint32_t *b, long ldb, float *c, long ldc, int depth, int columns,
                         const int rows, int half) {
  int n = 0;
  for (; n + 4 * LANES <= columns; n += 4 * LANES) product_block(a, lda, b + n, ldb, c + n, ldc, depth, rows, 4, half);
  for (; n < columns; n += LANES) product_block(a, lda, b + n, ldb, c + n, ldc, depth, rows, 1, half);
}

/* c[rows, columns] += a[rows, depth] b[depth, columns]; columns a multiple of LANES. */
INLINE void product(const uint32_t *a, long lda, const uint32_t *b, long ldb, float *c, long ldc, int depth, int columns,
                    int rows, int half) {
  for (int r = 0; r < rows; r += 4) {
    const uint32_t *x = a + r * lda;
    float *y = c + r * ldc;
    switch (rows - r) {
      case 1: product_rows(x, lda, b, ldb, y, ldc, depth, columns, 1, half); break;
      case 2: product_rows(x, lda, b, ldb, y, ldc, depth, columns, 2, half); break;
      case 3: product_rows(x, lda, b, ldb, y, ldc, depth, columns, 3, half); break;
      default: product_rows(x, lda, b, ldb, y, ldc, depth, columns, 4, half);
    }
  }
}

/* Sixteen rows of sixteen words, turned over: four rounds of interleaving row i with row i + 8. */
INLINE void transpose(words m[LANES]) {
#pragma GCC unroll 4
  for (int round = 0; round < 4; round++) {
    words next[LANES];
    for (int i = 0; i < LANES / 2; i++) {
      words a = m[i], b = m[i + LANES / 2];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    memcpy(m, next, sizeof next);
  }
}

#define ALIGNED __attribute__((aligned(64)))

/* Working memory of one thread. Strides are what a head needs, so that the caches hold a tile of narrow heads. */
typedef struct {
  uint32_t queries[TILE * MAX_WIDTH] ALIGNED; /* [vector, words of D] */
  uint32_t keys[MAX_WIDTH * KEYS] ALIGNED;    /* [words of D, position] */
  uint32_t values[KEYS * MAX_WIDTH] ALIGNED;  /* [words of positions, D] */
  uint32_t weights[TILE * KEYS] ALIGNED;      /* [vector, words of positions] */
  float scores[TILE * KEYS] ALIGNED;          /* [vector, position] */
  float sums[TILE * MAX_WIDTH] ALIGNED;       /* [vector, D] */
  const char *key_at[KEYS], *value_at[KEYS];
  float most[TILE], total[TILE];
  int position[TILE];
} Scratch;

/* Where the keys and values of positions [base, base + count) lie: page by page, since a division for each is slow. */
INLINE void locate(Scratch *s, const Pages *pages, const int *table, int head, int base, int count, int size) {
  int page = base / pages->page_size, offset = base % pages->page_size;
  for (int j = 0; j < count; page++, offset = 0) {
    long at = place(pages, table[page], head, offset) * size;
    for (; offset < pages->page_size && j < count; offset++, j++, at += (long)pages->width * size) {
      s->key_at[j] = pages->keys + at;
      s->value_at[j] = pages->values + at;
      for (int line = 0; line < pages->width * size; line += 64) {
        __builtin_prefetch(s->key_at[j] + line);
        __builtin_prefetch(s->value_at[j] + line);
      }
    }
  }
}

/* A column of at most LANES words of sixteen keys, turned into at most LANES rows. */
INLINE void pack_column(Scratch *s, int position, int count, int word, const int depth) {
  words m[LANES];
  for (int i = 0; i < LANES; i++) {
    m[i] = (words){};
    memcpy(&m[i], s->key_at[position + i < count ? position + i : count - 1] + 4L * word, 4L * depth);
  }
  transpose(m);
  for (int i = 0; i < depth; i++) memcpy(s->keys + (word + i) * KEYS + position, &m[i], sizeof m[i]);
}

/* Keys of `count` positions, transposed. Columns past `count` repeat the last position; their scores are masked. */
INLINE void pack_keys(Scratch *s, int count, int depth) {
  for (int j = 0; j < count; j += LANES) {
    int d = 0;
    for (; d + LANES <= depth; d += LANES) pack_column(s, j, count, d, LANES);
    if (d < depth) pack_column(s, j, count, d, LANES / 2); /* heads are multiples of LANES wide, words may be half */
  }
}

/* Values of `count` positions; of bfloat16 two positions go to a row of words. An odd last one is paired with zeros. */
INLINE void pack_values(Scratch *s, int count, int D, int half) {
  if (!half) {
    for (int j = 0; j < count; j++) memcpy(s->values + j * D, s->value_at[j], 4L * D);
    return;
  }
  for (int j = 0; j < count; j += 2) {
    for (int d = 0; d < D; d += LANES) {
      words pair = __builtin_convertvector(load_halves(s->value_at[j] + 2 * d), words);
      if (j + 1 < count) pair |= __builtin_convertvector(load_halves(s->value_at[j + 1] + 2 * d), words) << 16;
      memcpy(s->values + j / 2 * D + d, &pair, sizeof pair);
    }
  }
}

/* Scores of one query vector to weights 2^(score - most), rescaling what was summed before. Positions outside
 * [first, last] are masked; `base` is the position of column 0. */
INLINE void weigh(Scratch *s, int r, int columns, int base, int first, int last, float scale, int D, int half) {
  const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int masked = base < first || base + columns - 1 > last;
  floats most = splat(-INFINITY);
  for (int j = 0; j < columns; j += LANES) {
    floats x = load(s->scores + r * KEYS, j, 0) * scale;
    if (masked) {
      ints at = lane + (base + j);
      x = select_floats((at >= first) & (at <= last), x, splat(-INFINITY));
    }
    store(s->scores + r * KEYS, j, x, 0);
    most = select_floats(x > most, x, most);
  }
  float high = max_lanes(most), before = s->most[r];
  if (high < before) high = before;
  float reference = high == -INFINITY ? 0.0f : high; /* nothing seen yet: all weights are 0 */
  float keep = exp2_lanes(splat(before - reference))[0];
  floats total = {};
  for (int j = 0; j < columns; j += LANES) {
    floats w = exp2_lanes(load(s->scores + r * KEYS, j, 0) - reference);
    total += w;
    store(s->weights + r * KEYS, j, w, half);
  }
  s->most[r] = high;
  s->total[r] = s->total[r] * keep + sum_lanes(total);
  if (keep != 1.0f)
    for (int d = 0; d < D; d += LANES) store(s->sums + r * D, d, load(s->sums + r * D, d, 0) * keep, 0);
}

/* One tile: query vectors [vector, vector + rows) of one row and one key head, vector = token * group + head in group. */
INLINE void attend_tile(Scratch *s, const char *queries, long query_stride, const Pages *pages, const int *table, char *out,
                        long out_stride, int vector, int rows, int group, int head, int start, int window, float scale,
                        const int half) {
  const int D = pages->width, size = half ? 2 : 4, depth = words_of(D, half);
  for (int r = 0; r < rows; r++) {
    int token = (vector + r) / group, h = head * group + (vector + r) % group;
    memcpy(s->queries + r * depth, queries + (token * query_stride + (long)h * D) * size, (long)D * size);
    memset(s->sums + r * D, 0, sizeof(float) * D);
    s->most[r] = -INFINITY;
    s->total[r] = 0;
    s->position[r] = start + token;
  }
  const int end = s->position[rows - 1] + 1;
  int seen_from = window && s->position[0] - window + 1 > 0 ? s->position[0] - window + 1 : 0;
  seen_from -= seen_from % KEYS; /* blocks lie the same way for every tile: a token's sums do not depend on its company */
  for (int base = seen_from; base < end; base += KEYS) {
    const int count = end - base < KEYS ? end - base : KEYS, columns = (count + LANES - 1) / LANES * LANES;
    locate(s, pages, table, head, base, count, size);
    pack_keys(s, count, depth);
    pack_values(s, count, D, half);
    for (int r = 0; r < rows; r++) memset(s->scores + r * KEYS, 0, sizeof(float) * columns);
    product(s->queries, depth, s->keys, KEYS, s->scores, KEYS, depth, columns, rows, half);
    for (int r = 0; r < rows; r++) {
      int first = window ? s->position[r] - window + 1 : 0;
      weigh(s, r, columns, base, first, s->position[r], scale, D, half);
    }
    product(s->weights, KEYS, s->values, D, s->sums, D, words_of(count + (half & count), half), D,
            rows, half);
  }
  for (int r = 0; r < rows; r++) {
    int token = (vector + r) / group, h = head * group + (vector + r) % group;
    char *o = out + (token * out_stride + (long)h * D) * size;
    float inverse = 1.0f / s->total[r];
    for (int d = 0; d < D; d += LANES) store(o, d, load(s->sums + r * D, d, 0) * inverse, half);
  }
}

typedef struct {
  const char *queries;
  long query_stride;
  const Pages *pages;
  const int *table;
  long table_width;
  const int *row_starts, *contexts;
  char *out;
  int heads, window;
  float scale;
} Attend;

INLINE long tiles_of(const Attend *a, int row) {
  const long vectors = (long)(a->row_starts[row + 1] - a->row_starts[row]) * (a->heads / a->pages->kv_heads);
  return (vectors + TILE - 1) / TILE;
}

/* One tile of one row for one key head; items count tiles over all rows, the key heads of a tile side by side. */
static void attend_item(const void *job, long item) {
  const Attend *a = job;
  const Pages *pages = a->pages;
  const int head = (int)(item % pages->kv_heads), group = a->heads / pages->kv_heads, size = pages->half ? 2 : 4;
  const long out_stride = (long)a->heads * pages->width;
  long tile = item / pages->kv_heads;
  int row = 0;
  for (; tile >= tiles_of(a, row); row++) tile -= tiles_of(a, row);
  const int first = a->row_starts[row], count = a->row_starts[row + 1] - first, start = a->contexts[row] - count;
  const int vector = (int)tile * TILE, rows = count * group - vector < TILE ? count * group - vector : TILE;
  const char *q = a->queries + first * a->query_stride * size;
  char *o = a->out + first * out_stride * size;
  const int *table = a->table + row * a->table_width;
  Scratch scratch;
  if (pages->half)
    attend_tile(&scratch, q, a->query_stride, pages, table, o, out_stride, vector, rows, group, head, start, a->window,
                a->scale, 1);
  else
    attend_tile(&scratch, q, a->query_stride, pages, table, o, out_stride, vector, rows, group, head, start, a->window,
                a->scale, 0);
}

/* Causal attention of every row of a step. Row r owns tokens [row_starts[r], row_starts[r + 1]) of queries and out, its
 * context is contexts[r] long with those tokens at its end, and table[r, :] are its pages. Strides are in elements from
 * token to token. A window of 0 is none. Scores are q.k * scale. */
void headwater_attend(Crew *crew, const char *queries, long query_stride, const Pages *pages, const int *table,
                      long table_width, const int *row_starts, const int *contexts, char *out, int rows, int heads, int window,
                      float scale) {
  scale *= 1.44269504f; /* so that 2^x does for e^x */
  const Attend job = {queries, query_stride, pages, table, table_width, row_starts, contexts, out, heads, window, scale};
  long tiles = 0;
  for (int row = 0; row < rows; row++) tiles += tiles_of(&job, row);
  share(crew, tiles * pages->kv_heads, attend_item, &job);
}

/* ---- masks: what a grammar bars becomes -infinity ---------------------------------------------------------------- */

#define BITS 32
#define ITEM_WORDS 256 /* of a mask, so that an item has 8,192 logits */

INLINE void bar_lanes(float *x, uint32_t bits) {
  const ints lanes = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  ints allowed = ((ints){} + (int)bits & lanes) != 0;
  store(x, 0, select_floats(allowed, load(x, 0, 0), splat(-INFINITY)), 0);
}

typedef struct {
  float *logits;
  const int64_t *rows;
  const uint32_t *masks;
  long V, W, items;
} Bar;

/* ITEM_WORDS words of one mask. Words that allow everything are not worth a look at their logits. */
static void bar_item(const void *job, long item) {
  const Bar *b = job;
  const long row = item / b->items, from = item % b->items * ITEM_WORDS;
  const uint32_t *mask = b->masks + row * b->W;
  float *x = b->logits + b->rows[row] * b->V;
  for (long w = from; w < from + ITEM_WORDS && w * BITS < b->V; w++) {
    float *at = x + w * BITS;
    const uint32_t bits = mask[w];
    if (bits == 0xffffffffu) continue;
    if ((w + 1) * BITS <= b->V) {
      bar_lanes(at, bits);
      bar_lanes(at + LANES, bits >> LANES);
    } else {
      for (long i = 0; w * BITS + i < b->V; i++)
        if (!(bits >> i & 1)) at[i] = -INFINITY;
    }
  }
}

/* Of logits[:, V] the rows named are masked in place: bit t % 32 of word t / 32 of masks[K, W] allows token t. */
void headwater_bar(Crew *crew, float *logits, const int64_t *rows, const uint32_t *masks, long K, long V, long W) {
  const long items = ((V + BITS - 1) / BITS + ITEM_WORDS - 1) / ITEM_WORDS;
  const Bar job = {logits, rows, masks, V, W, items};
  share(crew, K * items, bar_item, &job);
}

/* Whether this build has an instruction for dot products of bfloat16. */
int headwater_has_bfloat16(void) {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}

/* Runs TFLite models on a board and tells what they gave and how long they took.
 *
 *   edgefuse-runner --runtime LIBRARY [options] MODEL FEEDS OUTPUTS [MODEL FEEDS OUTPUTS ...]
 *
 * LIBRARY holds the TfLite C API (libLiteRt.so, libtensorflowlite_c.so) and is opened by its path,
 * so one binary serves every runtime. FEEDS holds the model's inputs raw, one feed after the other,
 * each with all inputs in the model's order; OUTPUTS is written likewise. `-` stands for none.
 *
 *   --kernels default|builtin|reference   the runtime's own choice (XNNPACK); no delegate; plain
 *   --threads N     interpreter threads (1)
 *   --warmup N      invokes of each model before anything counts (0)
 *   --order 0,1,..  invoke the models in this order, each with its first feed; without it every
 *                   model is invoked with each of its feeds once
 *   --seconds N     repeat the order until so much time has gone
 *   --marks         tell the counting plugin of qemu where an invoke begins and ends
 *   --operators     names, times and marks of single operators; the invokes then take longer
 *   --tensors       addresses and sizes of all tensors after the last invoke
 *
 * Standard output is one JSON document, standard error ends with one line when something failed.
 * Exit codes: 2 usage, 3 a file, 4 the library, 5 the model was refused, 6 an invoke failed,
 * 7 the feeds do not fit the model.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "operators.h"
#include "tflite.h"

enum { USAGE = 2, FILES = 3, LIBRARY = 4, REFUSED = 5, INVOKE = 6, FEEDS = 7 };
enum { MARK = 0x45444745, BEGIN = 1, END = 2, OPERATOR_BEGIN = 3, OPERATOR_END = 4 };
enum { MOST_MODELS = 16, MOST_EVENTS = 1 << 16 };

typedef struct {
    char *name;
    int64_t index, subgraph, ns; /* ns < 0: microseconds as the delegate gave them, negated */
} Event;

typedef struct {
    const char *model_path, *feeds_path, *outputs_path;
    TfLiteModel *model;
    TfLiteInterpreter *interpreter;
    char *feeds;
    size_t feed_bytes, count;
    FILE *outputs;
    Event *events;
    size_t event_count;
} Run;

static Api api;
static Run runs[MOST_MODELS];
static int run_count;
static Run *running; /* whose operators are recorded now; none while warming up */
static int marks;
static char said[2048]; /* what the runtime reported, its lines joined */

static void fail(int code, const char *format, ...) {
    va_list args;
    fflush(stdout);
    fprintf(stderr, "edgefuse-runner: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(code);
}

static void *must(void *pointer) {
    if (!pointer) fail(FILES, "out of memory");
    return pointer;
}

static void report(void *unused, const char *format, va_list args) {
    size_t used = strlen(said);
    (void)unused;
    if (used && used + 3 < sizeof said) strcpy(said + used, "; "), used += 2;
    vsnprintf(said + used, sizeof said - used, format, args);
    for (char *c = said; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
}

static const char *reason(void) { return said[0] ? said : "the runtime gave no reason"; }

static void mark(int kind) {
    if (marks) getpriority((int)MARK, (id_t)kind);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Operators, as the runtime's telemetry tells of them. */

static void event(const char *name, int64_t index, int64_t subgraph, int64_t ns) {
    if (running->event_count == MOST_EVENTS) fail(INVOKE, "more than %d operators", MOST_EVENTS);
    Event *e = &running->events[running->event_count++];
    e->name = must(strdup(name));
    e->index = index, e->subgraph = subgraph, e->ns = ns;
}

static uint32_t operator_begin(Profiler *p, const char *name, int64_t index, int64_t subgraph) {
    (void)p;
    if (!running) return UINT32_MAX;
    event(name, index, subgraph, 0);
    uint32_t handle = (uint32_t)running->event_count - 1;
    running->events[handle].ns = now_ns();
    mark(OPERATOR_BEGIN);
    return handle;
}

static void operator_end(Profiler *p, uint32_t handle) {
    (void)p;
    if (!running || handle == UINT32_MAX) return;
    mark(OPERATOR_END);
    running->events[handle].ns = now_ns() - running->events[handle].ns;
}

static void operator_timed(Profiler *p, const char *name, uint64_t us, int64_t i, int64_t sub) {
    (void)p;
    if (running) event(name, i, sub, -(int64_t)us - 1);
}

static void ignore_event(Profiler *p, const char *name, uint64_t status) {
    (void)p, (void)name, (void)status;
}
static void ignore_operator(Profiler *p, const char *n, int64_t i, int64_t s, uint64_t status) {
    (void)p, (void)n, (void)i, (void)s, (void)status;
}
static void ignore_settings(Profiler *p, const char *name, const void *settings) {
    (void)p, (void)name, (void)settings;
}

static Profiler profiler = {NULL,           ignore_event, ignore_operator, ignore_settings,
                            operator_begin, operator_end, operator_timed};

/* Kernel sets other than the runtime's own. */

static const Registration *find_builtin(void *reference, int code, int version) {
    if (reference && !in_reference_set(code)) {
        snprintf(said, sizeof said, "Didn't find op for builtin code %d in the reference kernels",
                 code);
        return NULL;
    }
    return api.find_builtin(api.resolver, code, version);
}

static const Registration *find_custom(void *unused, const char *name, int version) {
    (void)unused;
    return api.find_custom(api.resolver, name, version);
}

/* One model. */

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(FILES, "cannot read %s: %s", path, strerror(errno));
    if (fseek(file, 0, SEEK_END)) fail(FILES, "cannot read %s: %s", path, strerror(errno));
    long length = ftell(file);
    if (length < 0) fail(FILES, "cannot read %s: %s", path, strerror(errno));
    rewind(file);
    char *data = must(malloc((size_t)length + 1));
    if (fread(data, 1, (size_t)length, file) != (size_t)length) fail(FILES, "cannot read %s", path);
    fclose(file);
    *size = (size_t)length;
    return data;
}

static void load(Run *r, const char *kernels, int threads, int operators) {
    said[0] = 0;
    r->model = api.model_create(r->model_path, report, NULL);
    if (!r->model) fail(REFUSED, "%s is no model that the runtime takes: %s", r->model_path, reason());
    TfLiteInterpreterOptions *options = must(api.options_create());
    api.options_set_threads(options, threads);
    api.options_set_reporter(options, report, NULL);
    if (operators) {
        r->events = must(calloc(MOST_EVENTS, sizeof *r->events));
        api.options_set_profiler(options, &profiler);
    }
    if (strcmp(kernels, "default")) {
        int reference = !strcmp(kernels, "reference");
        api.options_set_resolver(options, find_builtin, find_custom, reference ? &api : NULL);
        r->interpreter = api.create_selected(r->model, options);
    } else {
        /* libLiteRt.so does not apply XNNPACK of itself through the C API; its Python does. */
        if (api.xnnpack_create) {
            XnnpackOptions xnnpack = api.xnnpack_defaults();
            xnnpack.threads = threads;
            api.options_add_delegate(options, must(api.xnnpack_create(&xnnpack)));
        }
        r->interpreter = api.create(r->model, options);
    }
    if (!r->interpreter || api.allocate(r->interpreter))
        fail(REFUSED, "the runtime refuses %s: %s", r->model_path, reason());
    api.options_delete(options);

    for (int i = 0; i < api.input_count(r->interpreter); i++)
        r->feed_bytes += api.tensor_bytes(api.input(r->interpreter, i));
    if (strcmp(r->feeds_path, "-")) {
        size_t size;
        r->feeds = read_file(r->feeds_path, &size);
        if (!r->feed_bytes || !size || size % r->feed_bytes)
            fail(FEEDS, "%s has %zu bytes, %s takes %zu a feed", r->feeds_path, size,
                 r->model_path, r->feed_bytes);
        r->count = size / r->feed_bytes;
    }
    if (strcmp(r->outputs_path, "-")) {
        r->outputs = fopen(r->outputs_path, "wb");
        if (!r->outputs) fail(FILES, "cannot write %s: %s", r->outputs_path, strerror(errno));
    }
}

static int64_t invoke(Run *r, size_t feed, int counted) {
    const char *data = r->feeds + feed * r->feed_bytes;
    for (int i = 0; i < api.input_count(r->interpreter); i++) {
        TfLiteTensor *tensor = api.input(r->interpreter, i);
        size_t bytes = api.tensor_bytes(tensor);
        if (api.copy_from(tensor, data, bytes)) fail(FEEDS, "input %d cannot be set", i);
        data += bytes;
    }
    said[0] = 0;
    if (r->events) {
        while (r->event_count) free(r->events[--r->event_count].name);
        running = counted ? r : NULL;
    }
    int64_t start = now_ns();
    if (counted) mark(BEGIN);
    int status = api.invoke(r->interpreter);
    if (counted) mark(END);
    int64_t gone = now_ns() - start;
    running = NULL;
    if (status) fail(INVOKE, "%s failed while it ran: %s", r->model_path, reason());
    return gone;
}

static void write_outputs(Run *r) {
    for (int i = 0; i < api.output_count(r->interpreter); i++) {
        const TfLiteTensor *tensor = api.output(r->interpreter, i);
        size_t bytes = api.tensor_bytes(tensor);
        if (fwrite(api.tensor_data(tensor), 1, bytes, r->outputs) != bytes)
            fail(FILES, "cannot write %s: %s", r->outputs_path, strerror(errno));
    }
}

/* JSON. */

static void put_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)(text ? text : ""); *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < 32) printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

static void put_tensor(const TfLiteTensor *tensor) {
    printf("{\"name\": ");
    put_string(api.tensor_name(tensor));
    printf(", \"type\": %d, \"bytes\": %zu, \"shape\": [", api.tensor_type(tensor),
           api.tensor_bytes(tensor));
    for (int i = 0; i < api.tensor_rank(tensor); i++)
        printf("%s%d", i ? ", " : "", api.tensor_dim(tensor, i));
    printf("]}");
}

static void put_run(Run *r, int tensors) {
    printf("{\"inputs\": [");
    for (int i = 0; i < api.input_count(r->interpreter); i++) {
        if (i) printf(", ");
        put_tensor(api.input(r->interpreter, i));
    }
    printf("], \"outputs\": [");
    for (int i = 0; i < api.output_count(r->interpreter); i++) {
        if (i) printf(", ");
        put_tensor(api.output(r->interpreter, i));
    }
    printf("], \"operators\": [");
    for (size_t i = 0; i < r->event_count; i++) {
        Event *e = &r->events[i];
        printf("%s{\"name\": ", i ? ", " : "");
        put_string(e->name);
        printf(", \"index\": %lld, \"subgraph\": %lld, ", (long long)e->index,
               (long long)e->subgraph);
        if (e->ns < 0) printf("\"delegate_us\": %lld}", (long long)(-e->ns - 1));
        else printf("\"ns\": %lld}", (long long)e->ns);
    }
    printf("], \"tensors\": [");
    if (tensors) {
        const TfLiteTensor *tensor;
        for (int i = 0; (tensor = api.tensor(r->interpreter, i)); i++)
            printf("%s[%llu, %zu]", i ? ", " : "",
                   (unsigned long long)(uintptr_t)api.tensor_data(tensor),
                   api.tensor_bytes(tensor));
    }
    printf("]}");
}

/* The command line. */

static long number(const char *text, long least, long most, const char *option) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < least || value > most)
        fail(USAGE, "%s takes a number from %ld to %ld, not %s", option, least, most, text);
    return value;
}

static size_t parse_order(const char *text, int **order) {
    size_t count = 0;
    *order = must(malloc((strlen(text) + 1) * sizeof **order));
    for (;;) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || value < 0 || value >= run_count || (*end && *end != ','))
            fail(USAGE, "--order takes numbers of models, from 0 to %d", run_count - 1);
        (*order)[count++] = (int)value;
        if (!*end) return count;
        text = end + 1;
    }
}

int main(int argc, char **argv) {
    const char *runtime = NULL, *kernels = "default", *order_text = NULL;
    long threads = 1, warmup = 0, seconds = 0;
    int operators = 0, tensors = 0, at = 1;
    for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
        const char *option = argv[at];
        if (!strcmp(option, "--marks")) { marks = 1; continue; }
        if (!strcmp(option, "--operators")) { operators = 1; continue; }
        if (!strcmp(option, "--tensors")) { tensors = 1; continue; }
        if (++at == argc) fail(USAGE, "%s takes a value", option);
        if (!strcmp(option, "--runtime")) runtime = argv[at];
        else if (!strcmp(option, "--kernels")) kernels = argv[at];
        else if (!strcmp(option, "--order")) order_text = argv[at];
        else if (!strcmp(option, "--threads")) threads = number(argv[at], 1, 1024, option);
        else if (!strcmp(option, "--warmup")) warmup = number(argv[at], 0, 1000000, option);
        else if (!strcmp(option, "--seconds")) seconds = number(argv[at], 0, 1000000, option);
        else fail(USAGE, "unknown option %s", option);
    }
    if (!runtime) fail(USAGE, "--runtime LIBRARY is missing");
    if (strcmp(kernels, "default") && strcmp(kernels, "builtin") && strcmp(kernels, "reference"))
        fail(USAGE, "--kernels is default, builtin or reference, not %s", kernels);
    if (at == argc || (argc - at) % 3) fail(USAGE, "give MODEL FEEDS OUTPUTS for each model");
    if ((argc - at) / 3 > MOST_MODELS) fail(USAGE, "at most %d models", MOST_MODELS);

    char why[1024];
    if (!open_api(&api, runtime, kernels, operators, why, sizeof why)) fail(LIBRARY, "%s", why);
    for (; at < argc; at += 3) {
        Run *r = &runs[run_count++];
        r->model_path = argv[at], r->feeds_path = argv[at + 1], r->outputs_path = argv[at + 2];
        load(r, kernels, (int)threads, operators);
    }
    int *order = NULL;
    size_t steps = order_text ? parse_order(order_text, &order) : 0;
    for (int m = 0; m < run_count; m++) {
        if (!runs[m].count && (order || warmup)) fail(FEEDS, "%s has no feeds", runs[m].model_path);
        for (long i = 0; i < warmup; i++) invoke(&runs[m], 0, 0);
    }

    printf("{\"runner\": 1, \"version\": ");
    put_string(api.version());
    printf(", \"xnnpack\": %s, \"times_ns\": [", api.xnnpack_create ? "true" : "false");
    int64_t until = now_ns() + (int64_t)seconds * 1000000000;
    const char *comma = "";
    if (order) {
        do
            for (size_t s = 0; s < steps; s++, comma = ", ")
                printf("%s%lld", comma, (long long)invoke(&runs[order[s]], 0, 1));
        while (now_ns() < until);
    } else {
        for (int m = 0; m < run_count; m++)
            for (size_t f = 0; f < runs[m].count; f++, comma = ", ") {
                printf("%s%lld", comma, (long long)invoke(&runs[m], f, 1));
                if (runs[m].outputs) write_outputs(&runs[m]);
            }
    }
    printf("], \"models\": [");
    for (int m = 0; m < run_count; m++) {
        if (m) printf(", ");
        put_run(&runs[m], tensors);
        if (runs[m].outputs && fclose(runs[m].outputs))
            fail(FILES, "cannot write %s: %s", runs[m].outputs_path, strerror(errno));
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("], \"peak_rss_bytes\": %lld}\n", (long long)usage.ru_maxrss * 1024);
    if (fflush(stdout) || ferror(stdout)) fail(FILES, "cannot write the answer");
    /* The answer is out: the runtime need not take itself apart. */
    _Exit(0);
}

/* Runs a planned program on an NVIDIA GPU with nothing but its driver: no CUDA toolkit, torch, Triton.
 *
 *     launcher FOLDER --check      validate the plan and the code; no driver is needed
 *     launcher FOLDER [--runs N]   run the golden vectors, then N times for the time (100)
 *
 * FOLDER holds plan.txt, weights.bin, code.bin and golden.bin, as edgefuse/cuda/deploy.py writes
 * them. The answer is one line of JSON on standard output; a refusal is one line on standard error.
 *
 *     0  the plan is whole; the golden vectors agree
 *     1  a golden vector differs
 *     2  wrong usage
 *     3  FOLDER is damaged, or a call of the driver failed
 *     4  no driver, one too old, no GPU, no code for this GPU, or too little memory on it
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DIFFERS = 1, USAGE = 2, DAMAGED = 3, UNAVAILABLE = 4 };
enum { MOST_CODES = 16, MOST_ARGUMENTS = 96, MOST_SYMBOL = 128, MOST_ENDS = 64 };
#define MOST_KERNELS 65536u
#define MOST_LAUNCHES 1000000u
#define LEAST_DRIVER 12000

typedef struct { char *data; size_t size; } Bytes;
typedef struct { int architecture; uint64_t offset, size; uint32_t threads, shared; } Code;
typedef struct { char symbol[MOST_SYMBOL]; Code codes[MOST_CODES]; int count; } Kernel;
typedef struct { char block; uint64_t offset, size; } Argument;
typedef struct { uint32_t kernel, grid; int count; Argument *arguments; } Launch;
typedef struct { uint64_t offset, size; char kind[16]; } End;

static struct {
    uint64_t arena, weights, code, golden;
    double tolerance;
    uint32_t vectors;
    Kernel *kernels;
    uint32_t kernel_count;
    Launch *launches;
    uint32_t launch_count;
    End inputs[MOST_ENDS], outputs[MOST_ENDS];
    int input_count, output_count;
    int architectures[MOST_CODES];
    int architecture_count;
} plan;

static void refuse(int code, const char *format, ...)
{
    va_list given;
    va_start(given, format);
    fputs("launcher: ", stderr);
    vfprintf(stderr, format, given);
    fputc('\n', stderr);
    va_end(given);
    exit(code);
}

static void *owned(size_t size)
{
    void *made = calloc(1, size ? size : 1);
    if (!made)
        refuse(UNAVAILABLE, "out of memory on the host: %zu bytes", size);
    return made;
}

static Bytes read_file(const char *folder, const char *name)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path)
        refuse(USAGE, "the folder's name is too long");
    FILE *file = fopen(path, "rb");
    if (!file)
        refuse(DAMAGED, "%s cannot be read", path);
    if (fseek(file, 0, SEEK_END))
        refuse(DAMAGED, "%s cannot be read", path);
    long size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET))
        refuse(DAMAGED, "%s cannot be read", path);
    Bytes bytes = { owned((size_t)size + 1), (size_t)size };
    if (fread(bytes.data, 1, bytes.size, file) != bytes.size)
        refuse(DAMAGED, "%s cannot be read to its end", path);
    fclose(file);
    return bytes;
}

/* ---- plan.txt: a line a record, fields parted by one space ---- */

static int line_number;
static char *rest;

static char *field(void)
{
    if (!rest || !*rest)
        refuse(DAMAGED, "plan.txt line %d ends early", line_number);
    char *start = rest;
    char *space = strchr(rest, ' ');
    if (space)
        *space = 0;
    rest = space ? space + 1 : NULL;
    if (!*start)
        refuse(DAMAGED, "plan.txt line %d has an empty field", line_number);
    return start;
}

static uint64_t number_in(const char *text, uint64_t most)
{
    uint64_t value = 0;
    if (!*text || strlen(text) > 18)
        refuse(DAMAGED, "plan.txt line %d: %.20s is no number", line_number, text);
    for (const char *digit = text; *digit; digit++) {
        if (*digit < '0' || *digit > '9')
            refuse(DAMAGED, "plan.txt line %d: %.20s is no number", line_number, text);
        value = value * 10 + (uint64_t)(*digit - '0');
    }
    if (value > most)
        refuse(DAMAGED, "plan.txt line %d: %s is more than %llu", line_number, text,
               (unsigned long long)most);
    return value;
}

static uint64_t number(uint64_t most) { return number_in(field(), most); }

static void within(uint64_t offset, uint64_t size, uint64_t whole, const char *what)
{
    if (offset > whole || size > whole - offset)
        refuse(DAMAGED, "plan.txt line %d reaches beyond the end of the %s", line_number, what);
}

static uint64_t item_bytes(const char *kind)
{
    if (!strcmp(kind, "float32") || !strcmp(kind, "int32"))
        return 4;
    if (!strcmp(kind, "float16") || !strcmp(kind, "bfloat16"))
        return 2;
    if (!strcmp(kind, "int8"))
        return 1;
    refuse(DAMAGED, "plan.txt line %d: there is no dtype %.20s", line_number, kind);
    return 0;
}

static void read_end(End *ends, int *count)
{
    if (*count == MOST_ENDS)
        refuse(DAMAGED, "plan.txt has more than %d inputs or outputs", MOST_ENDS);
    End *end = &ends[(*count)++];
    end->offset = number(UINT64_MAX / 4);
    end->size = number(UINT64_MAX / 4);
    const char *kind = field();
    uint64_t item = item_bytes(kind);
    snprintf(end->kind, sizeof end->kind, "%s", kind);
    within(end->offset, end->size, plan.arena, "arena");
    if (end->size % item || end->offset % item)
        refuse(DAMAGED, "plan.txt line %d cuts an element", line_number);
}

static void read_code(const Bytes *code)
{
    Code made;
    uint64_t kernel = number(plan.kernel_count ? plan.kernel_count - 1 : 0);
    if (!plan.kernel_count)
        refuse(DAMAGED, "plan.txt line %d: code without a kernel", line_number);
    Kernel *owner = &plan.kernels[kernel];
    made.architecture = (int)number(999);
    made.offset = number(UINT64_MAX / 4);
    made.size = number(UINT64_MAX / 4);
    made.threads = (uint32_t)number(1024);
    made.shared = (uint32_t)number(228 * 1024);
    within(made.offset, made.size, code->size, "code");
    if (!made.threads || made.threads % 32)
        refuse(DAMAGED, "plan.txt line %d: %u threads are no whole warps", line_number, made.threads);
    if (owner->count == MOST_CODES)
        refuse(DAMAGED, "plan.txt line %d: too many architectures", line_number);
    owner->codes[owner->count++] = made;
}

static void read_launch(void)
{
    if (plan.launch_count == MOST_LAUNCHES)
        refuse(DAMAGED, "plan.txt has too many launches");
    Launch *launch = &plan.launches[plan.launch_count++];
    if (!plan.kernel_count)
        refuse(DAMAGED, "plan.txt line %d: a launch without a kernel", line_number);
    launch->kernel = (uint32_t)number(plan.kernel_count - 1);
    launch->grid = (uint32_t)number(INT32_MAX);
    launch->count = (int)number(MOST_ARGUMENTS);
    if (!launch->grid || !launch->count)
        refuse(DAMAGED, "plan.txt line %d launches nothing", line_number);
    launch->arguments = owned((size_t)launch->count * sizeof *launch->arguments);
    for (int i = 0; i < launch->count; i++) {
        Argument *argument = &launch->arguments[i];
        char *block = field();
        argument->block = block[0];
        if (strcmp(block, "a") && strcmp(block, "w"))
            refuse(DAMAGED, "plan.txt line %d: there is no block %.20s", line_number, block);
        argument->offset = number(UINT64_MAX / 4);
        argument->size = number(UINT64_MAX / 4);
        if (argument->offset % 16)
            refuse(DAMAGED, "plan.txt line %d: an address that is no multiple of 16", line_number);
        if (block[0] == 'a')
            within(argument->offset, argument->size, plan.arena, "arena");
        else
            within(argument->offset, argument->size, plan.weights, "weights");
    }
    if (launch->arguments[launch->count - 1].block != 'a')
        refuse(DAMAGED, "plan.txt line %d writes to the weights", line_number);
}

static void read_line(const Bytes *code)
{
    const char *kind = field();
    if (!strcmp(kind, "kernel")) {
        if (plan.kernel_count == MOST_KERNELS)
            refuse(DAMAGED, "plan.txt has too many kernels");
        const char *symbol = field();
        if (strlen(symbol) >= MOST_SYMBOL)
            refuse(DAMAGED, "plan.txt line %d: a symbol that is too long", line_number);
        strcpy(plan.kernels[plan.kernel_count++].symbol, symbol);
    } else if (!strcmp(kind, "code"))
        read_code(code);
    else if (!strcmp(kind, "input"))
        read_end(plan.inputs, &plan.input_count);
    else if (!strcmp(kind, "output"))
        read_end(plan.outputs, &plan.output_count);
    else if (!strcmp(kind, "launch"))
        read_launch();
    else
        refuse(DAMAGED, "plan.txt line %d: there is no record %.20s", line_number, kind);
    if (rest)
        refuse(DAMAGED, "plan.txt line %d is too long", line_number);
}

static uint64_t headed(const char *name, uint64_t most)
{
    if (strcmp(field(), name))
        refuse(DAMAGED, "plan.txt line %d is not %s", line_number, name);
    return number(most);
}

static void read_plan(Bytes text, const Bytes *weights, const Bytes *code, const Bytes *golden)
{
    char *next = text.data;
    uint64_t lines = 0, ended = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] != '\n' && (text.data[i] < ' ' || text.data[i] > '~'))
            refuse(DAMAGED, "plan.txt is no text");
        lines += text.data[i] == '\n';
    }
    plan.kernels = owned((lines < MOST_KERNELS ? lines : MOST_KERNELS) * sizeof *plan.kernels);
    plan.launches = owned((lines < MOST_LAUNCHES ? lines : MOST_LAUNCHES) * sizeof *plan.launches);
    for (line_number = 1; (rest = next) && *next; line_number++) {
        char *end = strchr(next, '\n');
        if (!end)
            refuse(DAMAGED, "plan.txt is cut off in line %d", line_number);
        *end = 0;
        next = end + 1;
        if (ended)
            refuse(DAMAGED, "plan.txt goes on after its end");
        if (line_number == 1) {
            if (headed("edgefuse-cuda-plan", 99) != 1)
                refuse(DAMAGED, "plan.txt has another version");
        } else if (line_number == 2)
            plan.arena = headed("arena", UINT64_MAX / 4);
        else if (line_number == 3)
            plan.weights = headed("weights", UINT64_MAX / 4);
        else if (line_number == 4)
            plan.code = headed("code", UINT64_MAX / 4);
        else if (line_number == 5)
            plan.golden = headed("golden", UINT64_MAX / 4);
        else if (line_number == 6)
            plan.vectors = (uint32_t)headed("vectors", 1000000);
        else if (line_number == 7)
            plan.tolerance = (double)headed("tolerance-millionths", 1000000) / 1e6;
        else if (!strncmp(rest, "end ", 4)) {
            ended = headed("end", UINT64_MAX / 4);
            if (ended != (uint64_t)line_number)
                refuse(DAMAGED, "plan.txt has lost lines");
        } else
            read_line(code);
    }
    if (!ended)
        refuse(DAMAGED, "plan.txt is cut off");
    if (plan.weights != weights->size || plan.code != code->size || plan.golden != golden->size)
        refuse(DAMAGED, "weights.bin, code.bin or golden.bin has another length than the plan says");
    if (!plan.launch_count || !plan.input_count || !plan.output_count)
        refuse(DAMAGED, "plan.txt has no launches, no inputs or no outputs");
}

/* ---- code.bin: each piece is an ELF file of the GPU that holds its kernel ---- */

static uint64_t little(const unsigned char *at, int size)
{
    uint64_t value = 0;
    for (int i = size - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static int has_kernel(const unsigned char *elf, uint64_t size, const char *symbol)
{
    char wanted[MOST_SYMBOL + 8];
    snprintf(wanted, sizeof wanted, ".text.%s", symbol);
    if (size < 64 || memcmp(elf, "\177ELF\002\001", 6) || little(elf + 18, 2) != 190)
        return 0;
    uint64_t table = little(elf + 40, 8), entry = little(elf + 58, 2);
    uint64_t count = little(elf + 60, 2), names = little(elf + 62, 2);
    if (entry != 64 || names >= count || table > size || count * 64 > size - table)
        return 0;
    uint64_t text = little(elf + table + names * 64 + 24, 8);
    uint64_t length = little(elf + table + names * 64 + 32, 8);
    if (text > size || length > size - text)
        return 0;
    for (uint64_t i = 0; i < count; i++) {
        const unsigned char *section = elf + table + i * 64;
        uint64_t name = little(section, 4), own = little(section + 24, 8);
        uint64_t bytes = little(section + 32, 8);
        if (name >= length || strlen(wanted) + 1 > length - name)
            continue;
        if (memcmp(elf + text + name, wanted, strlen(wanted) + 1))
            continue;
        return bytes > 0 && own <= size && bytes <= size - own;
    }
    return 0;
}

static void check_code(const Bytes *code)
{
    const Kernel *first = plan.kernels;
    plan.architecture_count = first->count;
    for (int i = 0; i < first->count; i++)
        plan.architectures[i] = first->codes[i].architecture;
    for (uint32_t k = 0; k < plan.kernel_count; k++) {
        const Kernel *kernel = &plan.kernels[k];
        if (!kernel->count || kernel->count != first->count)
            refuse(DAMAGED, "kernel %s lacks code for an architecture", kernel->symbol);
        for (int i = 0; i < kernel->count; i++) {
            const Code *own = &kernel->codes[i];
            if (own->architecture != plan.architectures[i])
                refuse(DAMAGED, "kernel %s lacks code for sm_%d", kernel->symbol,
                       plan.architectures[i]);
            const unsigned char *elf = (const unsigned char *)code->data + own->offset;
            if (!has_kernel(elf, own->size, kernel->symbol))
                refuse(DAMAGED, "the code of sm_%d does not hold kernel %s", own->architecture,
                       kernel->symbol);
        }
    }
}

static void check_golden(void)
{
    uint64_t size = 0;
    for (int i = 0; i < plan.input_count; i++)
        size += plan.inputs[i].size;
    for (int i = 0; i < plan.output_count; i++)
        size += plan.outputs[i].size;
    if (size * plan.vectors != plan.golden)
        refuse(DAMAGED, "golden.bin does not hold %u vectors", plan.vectors);
}

/* ---- the driver ---- */

typedef int Result;
typedef unsigned long long Address;
typedef void *Handle;

static struct {
    Result (*init)(unsigned);
    Result (*version)(int *);
    Result (*count)(int *);
    Result (*device)(int *, int);
    Result (*attribute)(int *, int, int);
    Result (*name)(char *, int, int);
    Result (*retain)(Handle *, int);
    Result (*current)(Handle);
    Result (*module)(Handle *, const void *);
    Result (*function)(Handle *, Handle, const char *);
    Result (*set)(Handle, int, int);
    Result (*allocate)(Address *, size_t);
    Result (*to_device)(Address, const void *, size_t);
    Result (*to_host)(void *, Address, size_t);
    Result (*stream)(Handle *, unsigned);
    Result (*launch)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     Handle, void **, void **);
    Result (*wait)(Handle);
    Result (*message)(Result, const char **);
} cu;

static void expect(Result result, const char *what)
{
    const char *text = NULL;
    if (!result)
        return;
    if (result == 2)
        refuse(UNAVAILABLE, "out of memory on the GPU: the plan needs %llu bytes",
               (unsigned long long)(plan.arena + plan.weights));
    if (cu.message)
        cu.message(result, &text);
    refuse(DAMAGED, "%s failed: %s (%d)", what, text ? text : "unknown", result);
}

static void find(void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    if (!found)
        refuse(UNAVAILABLE, "the NVIDIA driver is too old: it has no %s", name);
    memcpy(slot, &found, sizeof found);
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        refuse(UNAVAILABLE, "there is no NVIDIA driver: libcuda.so.1 cannot be loaded");
    find(library, "cuInit", &cu.init);
    find(library, "cuDriverGetVersion", &cu.version);
    find(library, "cuDeviceGetCount", &cu.count);
    find(library, "cuDeviceGet", &cu.device);
    find(library, "cuDeviceGetAttribute", &cu.attribute);
    find(library, "cuDeviceGetName", &cu.name);
    find(library, "cuDevicePrimaryCtxRetain", &cu.retain);
    find(library, "cuCtxSetCurrent", &cu.current);
    find(library, "cuModuleLoadData", &cu.module);
    find(library, "cuModuleGetFunction", &cu.function);
    find(library, "cuFuncSetAttribute", &cu.set);
    find(library, "cuMemAlloc_v2", &cu.allocate);
    find(library, "cuMemcpyHtoD_v2", &cu.to_device);
    find(library, "cuMemcpyDtoH_v2", &cu.to_host);
    find(library, "cuStreamCreate", &cu.stream);
    find(library, "cuLaunchKernel", &cu.launch);
    find(library, "cuStreamSynchronize", &cu.wait);
    find(library, "cuGetErrorName", &cu.message);
}

/* As code_for() in edgefuse/cuda/architecture.py. */
static int chosen_code(int device)
{
    int best = -1;
    for (int i = 0; i < plan.architecture_count; i++) {
        int own = plan.architectures[i];
        if (own == device)
            return i;
        if (device / 10 == 8 && own / 10 == 8 && device != 87 && own != 87 && own <= device &&
            (best < 0 || own > plan.architectures[best]))
            best = i;
    }
    return best;
}

static Address arena, weights_at;
static Handle stream, *functions;
static int code_place;

static void launch_all(void)
{
    Address addresses[MOST_ARGUMENTS + 2];
    void *given[MOST_ARGUMENTS + 2];
    for (uint32_t i = 0; i < plan.launch_count; i++) {
        const Launch *launch = &plan.launches[i];
        const Code *code = &plan.kernels[launch->kernel].codes[code_place];
        for (int j = 0; j < launch->count; j++) {
            const Argument *argument = &launch->arguments[j];
            addresses[j] = (argument->block == 'a' ? arena : weights_at) + argument->offset;
        }
        /* Triton's kernels end with two pointers to scratch memory, which these do not use. */
        addresses[launch->count] = addresses[launch->count + 1] = 0;
        for (int j = 0; j < launch->count + 2; j++)
            given[j] = &addresses[j];
        expect(cu.launch(functions[launch->kernel], launch->grid, 1, 1, code->threads, 1, 1,
                         code->shared, stream, given, NULL), "cuLaunchKernel");
    }
}

static float real(const unsigned char *at, const char *kind)
{
    uint32_t bits;
    float value;
    if (!strcmp(kind, "int8"))
        return (float)(signed char)at[0];
    if (!strcmp(kind, "int32"))
        return (float)(int32_t)little(at, 4);
    if (!strcmp(kind, "float16")) {
        uint32_t half = (uint32_t)little(at, 2), exponent = half >> 10 & 31, part = half & 1023;
        float sign = half >> 15 ? -1.0f : 1.0f;
        if (exponent == 31)
            return part ? NAN : sign * INFINITY;
        return sign * (exponent ? ldexpf((float)(part | 1024), (int)exponent - 25)
                                : ldexpf((float)part, -24));
    }
    bits = !strcmp(kind, "bfloat16") ? (uint32_t)little(at, 2) << 16 : (uint32_t)little(at, 4);
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The largest difference over the largest magnitude. */
static double difference(const End *end, const unsigned char *made, const unsigned char *wanted)
{
    uint64_t item = item_bytes(end->kind);
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < end->size; i += item) {
        double a = (double)real(made + i, end->kind), b = (double)real(wanted + i, end->kind);
        if (!isfinite(a) || !isfinite(b))
            return INFINITY;
        if (fabs(a - b) > worst)
            worst = fabs(a - b);
        if (fabs(b) > largest)
            largest = fabs(b);
    }
    return worst > 0 ? worst / (largest > 0 ? largest : 1) : 0;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void load_code(const Bytes *code)
{
    functions = owned(plan.kernel_count * sizeof *functions);
    for (uint32_t i = 0; i < plan.kernel_count; i++) {
        const Code *own = &plan.kernels[i].codes[code_place];
        Handle module = NULL;
        expect(cu.module(&module, code->data + own->offset), "cuModuleLoadData");
        expect(cu.function(&functions[i], module, plan.kernels[i].symbol), "cuModuleGetFunction");
        if (own->shared > 48 * 1024)
            expect(cu.set(functions[i], 8, (int)own->shared), "cuFuncSetAttribute");
    }
}

static int run(const Bytes *weights, const Bytes *code, const Bytes *golden, uint32_t runs)
{
    int version = 0, devices = 0, device = 0, major = 0, minor = 0;
    char name[256] = "";
    Handle context = NULL;
    open_driver();
    Result started = cu.init(0);
    if (started)
        refuse(UNAVAILABLE, "the NVIDIA driver finds no GPU (cuInit: %d)", started);
    expect(cu.version(&version), "cuDriverGetVersion");
    if (version < LEAST_DRIVER)
        refuse(UNAVAILABLE, "the NVIDIA driver is too old: it is for CUDA %d.%d, %d.%d is needed",
               version / 1000, version % 1000 / 10, LEAST_DRIVER / 1000, 0);
    expect(cu.count(&devices), "cuDeviceGetCount");
    if (devices < 1)
        refuse(UNAVAILABLE, "the NVIDIA driver finds no GPU");
    expect(cu.device(&device, 0), "cuDeviceGet");
    expect(cu.attribute(&major, 75, device), "cuDeviceGetAttribute");
    expect(cu.attribute(&minor, 76, device), "cuDeviceGetAttribute");
    expect(cu.name(name, (int)sizeof name - 1, device), "cuDeviceGetName");
    code_place = chosen_code(major * 10 + minor);
    if (code_place < 0)
        refuse(UNAVAILABLE, "there is no code for this GPU (sm_%d%d)", major, minor);
    expect(cu.retain(&context, device), "cuDevicePrimaryCtxRetain");
    expect(cu.current(context), "cuCtxSetCurrent");
    load_code(code);
    expect(cu.allocate(&arena, plan.arena ? plan.arena : 1), "cuMemAlloc");
    expect(cu.allocate(&weights_at, plan.weights ? plan.weights : 1), "cuMemAlloc");
    if (plan.weights)
        expect(cu.to_device(weights_at, weights->data, plan.weights), "cuMemcpyHtoD");
    expect(cu.stream(&stream, 1), "cuStreamCreate");
    double worst = 0;
    const unsigned char *at = (const unsigned char *)golden->data;
    for (uint32_t v = 0; v < plan.vectors; v++) {
        for (int i = 0; i < plan.input_count; at += plan.inputs[i++].size)
            expect(cu.to_device(arena + plan.inputs[i].offset, at, plan.inputs[i].size),
                   "cuMemcpyHtoD");
        launch_all();
        expect(cu.wait(stream), "cuStreamSynchronize");
        for (int i = 0; i < plan.output_count; at += plan.outputs[i++].size) {
            unsigned char *made = owned(plan.outputs[i].size);
            expect(cu.to_host(made, arena + plan.outputs[i].offset, plan.outputs[i].size),
                   "cuMemcpyDtoH");
            double own = difference(&plan.outputs[i], made, at);
            worst = own > worst ? own : worst;
            free(made);
        }
    }
    double *times = owned(runs * sizeof *times);
    for (uint32_t i = 0; i < runs; i++) {
        double began = now_ms();
        launch_all();
        expect(cu.wait(stream), "cuStreamSynchronize");
        times[i] = now_ms() - began;
    }
    qsort(times, runs, sizeof *times, ascending);
    for (char *c = name; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32)
            *c = '?';
    int passed = worst <= plan.tolerance;
    printf("{\"device\": \"%s\", \"architecture\": \"sm_%d\", \"driver\": %d, \"launches\": %u, "
           "\"arena_bytes\": %llu, \"weights_bytes\": %llu, \"vectors\": %u, "
           "\"largest_difference\": ",
           name, plan.architectures[code_place], version, plan.launch_count,
           (unsigned long long)plan.arena, (unsigned long long)plan.weights, plan.vectors);
    if (isfinite(worst))
        printf("%.6g", worst);
    else
        printf("null");
    printf(", \"tolerance\": %.6g, \"passed\": %s, \"runs\": %u, \"p50_ms\": %.4f, \"p90_ms\": %.4f}\n",
           plan.tolerance, passed ? "true" : "false", runs, runs ? times[runs / 2] : 0.0,
           runs ? times[(size_t)runs * 9 / 10] : 0.0);
    return passed ? 0 : DIFFERS;
}

int main(int count, char **words)
{
    uint32_t runs = 100;
    int check = 0;
    if (count < 2)
        refuse(USAGE, "usage: launcher FOLDER [--check | --runs N]");
    for (int i = 2; i < count; i++) {
        if (!strcmp(words[i], "--check"))
            check = 1;
        else if (!strcmp(words[i], "--runs") && i + 1 < count) {
            const char *text = words[++i];
            if (strlen(text) > 6 || strspn(text, "0123456789") != strlen(text) || !*text)
                refuse(USAGE, "--runs takes a number up to 999999");
            runs = (uint32_t)atol(text);
        } else
            refuse(USAGE, "there is no option %.40s", words[i]);
    }
    Bytes weights = read_file(words[1], "weights.bin"), code = read_file(words[1], "code.bin");
    Bytes golden = read_file(words[1], "golden.bin");
    read_plan(read_file(words[1], "plan.txt"), &weights, &code, &golden);
    check_code(&code);
    check_golden();
    if (!check)
        return run(&weights, &code, &golden, runs);
    printf("{\"kernels\": %u, \"launches\": %u, \"architectures\": [", plan.kernel_count,
           plan.launch_count);
    for (int i = 0; i < plan.architecture_count; i++)
        printf("%s\"sm_%d\"", i ? ", " : "", plan.architectures[i]);
    printf("], \"arena_bytes\": %llu, \"weights_bytes\": %llu, \"code_bytes\": %llu, "
           "\"vectors\": %u}\n",
           (unsigned long long)plan.arena, (unsigned long long)plan.weights,
           (unsigned long long)plan.code, plan.vectors);
    return 0;
}

/* The part of the TfLite C API that the runner calls, found in a library by name.
 *
 * Kernel sets other than the default need the C++ resolver's symbols (libLiteRt.so exports them);
 * a library without them is refused for those sets, never replaced by another set.
 */
#ifndef EDGEFUSE_TFLITE_H
#define EDGEFUSE_TFLITE_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "operators.h"

typedef struct TfLiteModel TfLiteModel;
typedef struct TfLiteInterpreter TfLiteInterpreter;
typedef struct TfLiteInterpreterOptions TfLiteInterpreterOptions;
typedef struct TfLiteTensor TfLiteTensor;
typedef struct Registration Registration;
typedef void (*Reporter)(void *user, const char *format, va_list args);

typedef struct Profiler {
    void *data;
    void (*event)(struct Profiler *, const char *name, uint64_t status);
    void (*operator_event)(struct Profiler *, const char *name, int64_t index, int64_t subgraph,
                           uint64_t status);
    void (*settings)(struct Profiler *, const char *name, const void *settings);
    uint32_t (*begin)(struct Profiler *, const char *name, int64_t index, int64_t subgraph);
    void (*end)(struct Profiler *, uint32_t handle);
    void (*timed)(struct Profiler *, const char *name, uint64_t us, int64_t index,
                  int64_t subgraph);
} Profiler;

/* Only its first field is ours to set; the rest is as large as any version's. */
typedef struct {
    int32_t threads;
    char others[508];
} XnnpackOptions;

typedef struct {
    const char *(*version)(void);
    TfLiteModel *(*model_create)(const char *path, Reporter, void *user);
    TfLiteInterpreterOptions *(*options_create)(void);
    void (*options_delete)(TfLiteInterpreterOptions *);
    void (*options_set_threads)(TfLiteInterpreterOptions *, int32_t);
    void (*options_set_reporter)(TfLiteInterpreterOptions *, Reporter, void *user);
    TfLiteInterpreter *(*create)(const TfLiteModel *, const TfLiteInterpreterOptions *);
    int (*allocate)(TfLiteInterpreter *);
    int (*invoke)(TfLiteInterpreter *);
    int32_t (*input_count)(const TfLiteInterpreter *);
    TfLiteTensor *(*input)(const TfLiteInterpreter *, int32_t);
    int32_t (*output_count)(const TfLiteInterpreter *);
    const TfLiteTensor *(*output)(const TfLiteInterpreter *, int32_t);
    int (*tensor_type)(const TfLiteTensor *);
    int32_t (*tensor_rank)(const TfLiteTensor *);
    int32_t (*tensor_dim)(const TfLiteTensor *, int32_t);
    size_t (*tensor_bytes)(const TfLiteTensor *);
    void *(*tensor_data)(const TfLiteTensor *);
    const char *(*tensor_name)(const TfLiteTensor *);
    int (*copy_from)(TfLiteTensor *, const void *, size_t);
    TfLiteTensor *(*tensor)(const TfLiteInterpreter *, int);
    /* Not in every library. */
    XnnpackOptions (*xnnpack_defaults)(void);
    void *(*xnnpack_create)(const XnnpackOptions *);
    void (*options_add_delegate)(TfLiteInterpreterOptions *, void *);
    void (*options_set_profiler)(TfLiteInterpreterOptions *, Profiler *);
    TfLiteInterpreter *(*create_selected)(const TfLiteModel *, const TfLiteInterpreterOptions *);
    void (*options_set_resolver)(TfLiteInterpreterOptions *,
                                 const Registration *(*)(void *, int, int),
                                 const Registration *(*)(void *, const char *, int), void *user);
    const Registration *(*find_builtin)(const void *resolver, int code, int version);
    const Registration *(*find_custom)(const void *resolver, const char *name, int version);
    void *resolver;
} Api;

/* dlsym gives void *, ISO C wants no such cast to a function: copy the bytes. */
static int find_symbol(void *library, const char *name, void *place) {
    void *symbol = dlsym(library, name);
    memcpy(place, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* A kernel of tflite::ops::builtin by its registration's name. */
static const Registration *kernel(void *library, const char *name) {
    const Registration *(*registration)(void);
    char mangled[160];
    snprintf(mangled, sizeof mangled, "_ZN6tflite3ops7builtin%zu%sEv", strlen(name), name);
    return find_symbol(library, mangled, &registration) ? registration() : NULL;
}

/* The library's own kernels without delegates; for `reference` its plain ones put in their place.
 * Returns the name of what is missing, or NULL. */
static const char *open_resolver(Api *api, void *library, int reference) {
    static long double room[512]; /* a resolver is a few hash tables: below 1 KiB */
    void (*construct)(void *);
    void (*add)(void *, int, const Registration *, int, int);
    const struct { const char *name; void *place; } wanted[] = {
        {"TfLiteInterpreterCreateWithSelectedOps", &api->create_selected},
        {"TfLiteInterpreterOptionsSetOpResolver", &api->options_set_resolver},
        {"_ZN6tflite3ops7builtin17BuiltinOpResolverC1Ev", &construct},
        {"_ZNK6tflite17MutableOpResolver6FindOpENS_15BuiltinOperatorEi", &api->find_builtin},
        {"_ZNK6tflite17MutableOpResolver6FindOpEPKci", &api->find_custom},
        {"_ZN6tflite17MutableOpResolver10AddBuiltinENS_15BuiltinOperatorEPK18TfLiteRegistrationii",
         &add},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!find_symbol(library, wanted[i].name, wanted[i].place)) return wanted[i].name;
    construct(room);
    api->resolver = room;
    for (const ReferenceKernel *k = REFERENCE_KERNELS; reference && k->name; k++) {
        const Registration *plain = kernel(library, k->name);
        if (!plain) return k->name;
        for (int version = 1; version < 64; version++)
            if (api->find_builtin(room, k->code, version)) add(room, k->code, plain, version, version);
    }
    return NULL;
}

/* 0 when the library cannot be used; `why` says so in one line. */
static int open_api(Api *api, const char *path, const char *kernels, int operators, char *why,
                    size_t size) {
    const struct { const char *name; void *place; } wanted[] = {
        {"TfLiteVersion", &api->version},
        {"TfLiteModelCreateFromFileWithErrorReporter", &api->model_create},
        {"TfLiteInterpreterOptionsCreate", &api->options_create},
        {"TfLiteInterpreterOptionsDelete", &api->options_delete},
        {"TfLiteInterpreterOptionsSetNumThreads", &api->options_set_threads},
        {"TfLiteInterpreterOptionsSetErrorReporter", &api->options_set_reporter},
        {"TfLiteInterpreterCreate", &api->create},
        {"TfLiteInterpreterAllocateTensors", &api->allocate},
        {"TfLiteInterpreterInvoke", &api->invoke},
        {"TfLiteInterpreterGetInputTensorCount", &api->input_count},
        {"TfLiteInterpreterGetInputTensor", &api->input},
        {"TfLiteInterpreterGetOutputTensorCount", &api->output_count},
        {"TfLiteInterpreterGetOutputTensor", &api->output},
        {"TfLiteTensorType", &api->tensor_type},
        {"TfLiteTensorNumDims", &api->tensor_rank},
        {"TfLiteTensorDim", &api->tensor_dim},
        {"TfLiteTensorByteSize", &api->tensor_bytes},
        {"TfLiteTensorData", &api->tensor_data},
        {"TfLiteTensorName", &api->tensor_name},
        {"TfLiteTensorCopyFromBuffer", &api->copy_from},
        {"TfLiteInterpreterGetTensor", &api->tensor},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "the runtime cannot be loaded: %s", dlerror());
        return 0;
    }
    const char *missing = NULL;
    for (size_t i = 0; !missing && i < sizeof wanted / sizeof *wanted; i++)
        if (!find_symbol(library, wanted[i].name, wanted[i].place)) missing = wanted[i].name;
    const char *profiling = "TfLiteInterpreterOptionsSetTelemetryProfiler";
    if (!missing && operators && !find_symbol(library, profiling, &api->options_set_profiler))
        missing = profiling;
    int plain = strcmp(kernels, "default");
    if (!plain && find_symbol(library, "TfLiteXNNPackDelegateOptionsDefault",
                              &api->xnnpack_defaults) &&
        !missing) {
        if (!find_symbol(library, "TfLiteXNNPackDelegateCreate", &api->xnnpack_create))
            missing = "TfLiteXNNPackDelegateCreate";
        if (!find_symbol(library, "TfLiteInterpreterOptionsAddDelegate",
                         &api->options_add_delegate))
            missing = "TfLiteInterpreterOptionsAddDelegate";
    }
    if (!missing && plain)
        missing = open_resolver(api, library, !strcmp(kernels, "reference"));
    if (!missing) return 1;
    snprintf(why, size, "%s has no %s, which %s kernels%s need", path, missing, kernels,
             operators ? " and operators" : "");
    return 0;
}

#endif

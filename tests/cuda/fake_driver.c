/* A driver of a GPU that is not there: memory of the host, kernels that copy their input. */
#include <stdlib.h>
#include <string.h>

static int setting(const char *name, int usual)
{
    const char *text = getenv(name);
    return text ? atoi(text) : usual;
}

int cuInit(unsigned flags) { return flags || setting("FAKE_INIT", 0) ? 100 : 0; }
int cuDriverGetVersion(int *version) { *version = setting("FAKE_VERSION", 12080); return 0; }
int cuDeviceGetCount(int *count) { *count = setting("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int place) { *device = place; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device)
{
    int number = setting("FAKE_ARCHITECTURE", 90) + device;
    *value = which == 75 ? number / 10 : number % 10;
    return 0;
}
int cuDeviceGetName(char *name, int size, int device)
{
    (void)device;
    strncpy(name, "a \"fake\" GPU", (size_t)size);
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &cuInit; return 0; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }
int cuModuleLoadData(void **module, const void *data)
{
    if (memcmp(data, "\177ELF", 4))
        return 200;
    *module = (void *)data;
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)name;
    *function = module;
    return 0;
}
int cuFuncSetAttribute(void *function, int which, int value) { (void)function; (void)which; return value < 0; }
int cuMemAlloc_v2(unsigned long long *address, size_t size)
{
    if (size > (size_t)setting("FAKE_MEMORY", 1 << 30))
        return 2;
    *address = (unsigned long long)calloc(1, size);
    return 0;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &cuInit; return 0; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty,
                   unsigned tz, unsigned shared, void *stream, void **given, void **extra)
{
    (void)function; (void)shared; (void)stream; (void)extra;
    if (!x || y != 1 || z != 1 || tx % 32 || ty != 1 || tz != 1)
        return 1;
    /* x and y of the test's kernel, and the two pointers to scratch memory after them. */
    unsigned long long from = *(unsigned long long *)given[0], to = *(unsigned long long *)given[1];
    if (*(unsigned long long *)given[2] || *(unsigned long long *)given[3])
        return 1;
    memcpy((void *)to, (void *)from, (size_t)setting("FAKE_COPIES", 0));
    return 0;
}
int cuStreamSynchronize(void *stream) { return stream ? 0 : 400; }
int cuGetErrorName(int error, const char **text) { (void)error; *text = "FAKE_ERROR"; return 0; }

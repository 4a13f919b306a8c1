/* Plugin of qemu's TCG: counts a guest's instructions and notes the count at the runner's marks.
 *
 *   qemu-aarch64 -plugin count.so,out=FILE[,clock=NUMBER] PROGRAM ...
 *
 * A mark is the system call getpriority(0x45444745, kind), which fails harmlessly everywhere. Each
 * becomes a line `kind count` of FILE, count being the instructions run until then. System call
 * NUMBER, the guest's clock_gettime, is noted too, as kind 5: XNNPACK reads the clock between two
 * operators when it is profiled, so its operators are told apart without any help of its own.
 *
 * Counted are all threads together; with one thread the count is the same in every run. The API of
 * plugins is declared here by hand, version 1, as distributions ship no header.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_info;
struct qemu_plugin_tb;
typedef void (*Translated)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*Called)(qemu_plugin_id_t, unsigned cpu, int64_t number, uint64_t, uint64_t,
                       uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*Ended)(qemu_plugin_id_t, void *);
enum { INLINE_ADD = 0 };

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, Translated);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int op, void *, uint64_t);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, Called);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, Ended, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);

#define VISIBLE __attribute__((visibility("default")))
VISIBLE int qemu_plugin_version = 1;

enum { MARK = 0x45444745, CLOCK = 5 };
static uint64_t count;
static int64_t clock_number = -1;
static FILE *out;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, INLINE_ADD, &count, qemu_plugin_tb_n_insns(tb));
}

static void called(qemu_plugin_id_t id, unsigned cpu, int64_t number, uint64_t a1, uint64_t a2,
                   uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
    (void)id, (void)cpu, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
    if ((uint32_t)a1 == MARK) fprintf(out, "%" PRIu64 " %" PRIu64 "\n", a2, count);
    else if (number == clock_number) fprintf(out, "%d %" PRIu64 "\n", CLOCK, count);
}

static void ended(qemu_plugin_id_t id, void *unused) {
    (void)id, (void)unused;
    fclose(out);
}

VISIBLE int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc,
                                char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "out=", 4)) out = fopen(argv[i] + 4, "w");
        else if (!strncmp(argv[i], "clock=", 6)) clock_number = atoll(argv[i] + 6);
    }
    if (!out) {
        fprintf(stderr, "count: no file to write to: give out=FILE\n");
        return -1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}

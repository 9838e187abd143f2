/* A stand-in for libnvidia-ml.so.1: NVML's functions, answered from a file beside this library.
 *
 * `machine` there holds sorted lines "key=value", written by standin.py from a machine file; it is read again whenever it
 * changes. A key that is missing means that this GPU does not support the query. Two pipes there give out what happens:
 * `events` has a Record for each event of nvmlEventSetWait_v2, `bindings` a Binding for each of nvmlSystemEventSetWait.
 * What a real driver opens is opened here too, below `root`, so that a test can see who holds a device node.
 *
 * Signatures and numbers are those of nvml.h. A handle is no pointer to anything: it encodes what it stands for.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, RESET_REQUIRED = 16, LIB_RM_VERSION_MISMATCH = 18, IN_USE = 19,
       INSUFFICIENT_RESOURCES = 23 };
enum { NOBODY = -1, MOST = 64 };
enum { DEVICE = 0x1000, MIG = 0x100000, INSTANCE = 0x200000, SET = 0x300000, BINDINGS = 0x400000, COMPUTE = 0x1000000 };
enum { UNSIGNED_LONG_LONG = 3 };

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long timestamp; unsigned sm, memory, encoder, decoder; } Use;
typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { int gpu, instance; } GpmSample;
typedef struct { unsigned id, error; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, size; GpmSample *older, *newer; GpmMetric metrics[]; } GpmQuestion;
typedef struct { unsigned sms, copy, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
                 unsigned long long memory; } Attributes;
typedef struct { uintptr_t device; unsigned id, profile, start, size; } InstanceInfo;
typedef struct { uintptr_t device, instance; unsigned id, profile, start, size; } ComputeInfo;
typedef struct { unsigned id, slices, instances, sms, copies, decoders, encoders, jpegs, ofas; } ComputeProfile;
typedef struct { unsigned start, size; } Placement;
typedef struct { unsigned id, p2p, slices, instances, sms, copies, decoders, encoders, jpegs, ofas;
                 unsigned long long memory; } Profile;
typedef struct { uintptr_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;

typedef struct { unsigned long long gpu, type, data, gpu_instance, compute_instance; } Record;
typedef struct { unsigned long long type, gpu_id; } Binding;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int error;
                 unsigned long long value; } Field;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state;
                 unsigned health; } FabricInfo;
typedef struct { unsigned code, state; char info[128], product[128]; unsigned enabled;
                 struct { unsigned year; unsigned short rest[5]; unsigned char status; } expiry; } LicensableFeature;
typedef struct { int supported; unsigned count; LicensableFeature features[3]; } LicensableFeatures;
typedef struct { unsigned version; uintptr_t set; } SetRequest;
typedef struct { unsigned version; unsigned long long types; uintptr_t set; } RegisterRequest;
typedef struct { unsigned long long type; unsigned gpu_id; } SystemEvent;
typedef struct { unsigned version, milliseconds; uintptr_t set; SystemEvent *events;
                 unsigned size, count; } WaitRequest;

static char folder[4096], *text, **lines, initial[64];
static size_t count;
static int control = -1, nodes[MOST], events = -1, bindings = -1, initialized;
static unsigned long long registered[MOST];
static struct timespec seen;
static ino_t seen_file;

/* --- the file ---------------------------------------------------------------------------------------------------- */

static char *slurp(const char *path)
{
    FILE *file = fopen(path, "r");
    char *data = NULL;
    size_t size = 0;
    if (!file)
        return NULL;
    if (getdelim(&data, &size, 0, file) < 0) {
        free(data);
        data = NULL;
    }
    fclose(file);
    return data;
}

static void refresh(void)
{
    char path[4200];
    struct stat now;
    if (!*folder) {
        Dl_info self;
        dladdr((void *)refresh, &self);
        snprintf(folder, sizeof folder, "%s", self.dli_fname);
        *strrchr(folder, '/') = 0;
    }
    snprintf(path, sizeof path, "%s/machine", folder);
    if (stat(path, &now) || (now.st_ino == seen_file && !memcmp(&now.st_mtim, &seen, sizeof seen)))
        return;
    char *fresh = slurp(path), *rest, *line;
    if (!fresh)
        return;
    seen = now.st_mtim;
    seen_file = now.st_ino;
    free(text);
    text = fresh;
    count = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (count % 256 == 0)
            lines = realloc(lines, (count + 256) * sizeof *lines);
        *strchr(line, '=') = 0;
        lines[count++] = line;
    }
}

static int compare(const void *key, const void *line) { return strcmp(key, *(char *const *)line); }

/* The value of a key, or NULL. */
static const char *get(const char *format, ...)
{
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    char **line = bsearch(key, lines, count, sizeof *lines, compare);
    return line ? *line + strlen(*line) + 1 : NULL;
}

/* Change what the file says: a value for a key, or NULL for none. `save` has the file say it. */
static char *changed[64][2];
static unsigned changes;

static void set(const char *value, const char *format, ...)
{
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    changed[changes][0] = strdup(key);
    changed[changes++][1] = value ? strdup(value) : NULL;
}

static int by_key(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }

static int save(void)
{
    char path[4200], fresh[4300];
    char **all = malloc((count + changes) * sizeof *all);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        int is_changed = 0;
        for (unsigned each = 0; each < changes; each++)
            is_changed |= !strcmp(lines[i], changed[each][0]);
        if (!is_changed)
            all[kept++] = lines[i];
    }
    for (unsigned each = 0; each < changes; each++)
        if (changed[each][1]) {
            char *line = malloc(strlen(changed[each][0]) + strlen(changed[each][1]) + 2);
            sprintf(line, "%s%c%s", changed[each][0], 0, changed[each][1]);
            strcpy(line + strlen(line) + 1, changed[each][1]);
            all[kept++] = line;
        }
    qsort(all, kept, sizeof *all, by_key);
    snprintf(path, sizeof path, "%s/machine", folder);
    snprintf(fresh, sizeof fresh, "%s.%d", path, getpid());
    FILE *file = fopen(fresh, "w");
    for (size_t i = 0; i < kept; i++)
        fprintf(file, "%s=%s\n", all[i], all[i] + strlen(all[i]) + 1);
    fclose(file);
    changes = 0;
    free(all);
    return rename(fresh, path) ? INVALID_ARGUMENT : SUCCESS;
}

static int copy(const char *value, char *to, unsigned size)
{
    if (!value)
        return NOT_SUPPORTED;
    snprintf(to, size, "%s", value);
    return SUCCESS;
}

static int number(const char *value, unsigned *to)
{
    if (!value)
        return NOT_SUPPORTED;
    *to = strtoul(value, NULL, 10);
    return SUCCESS;
}

/* --- failures ---------------------------------------------------------------------------------------------------- */

/* Do what the machine file says of a call: return an error, never return, or end the process. */
static int enter(const char *function, int gpu)
{
    refresh();
    for (unsigned i = 0;; i++) {
        const char *rule = get("failure.%u", i); /* "effect call gpu error" */
        char effect[16], call[128], plain[128];
        int whose, error;
        if (!rule)
            return SUCCESS;
        sscanf(rule, "%15s %127s %d %d", effect, call, &whose, &error);
        snprintf(plain, sizeof plain, "%s", function);
        if (strstr(plain, "_v"))
            *strstr(plain, "_v") = 0;
        if (whose != gpu || (fnmatch(call, function, 0) && fnmatch(call, plain, 0)))
            continue;
        if (*effect == 'e')
            return error;
        while (*effect == 'h')
            pause();
        prctl(PR_SET_DUMPABLE, 0);
        raise(SIGSEGV);
    }
}

/* Begin a function about GPU `gpu`, or about none. */
#define ENTER(gpu)                                 \
    do {                                           \
        int failed = enter(__func__, (gpu));       \
        if (failed)                                \
            return failed;                         \
        if (!initialized)                          \
            return UNINITIALIZED;                  \
    } while (0)

/* --- handles ----------------------------------------------------------------------------------------------------- */

static int is_mig(uintptr_t handle) { return handle >= MIG && handle < INSTANCE; }
static int slot(uintptr_t handle) { return handle & 0xff; }
static int gpu(uintptr_t handle)
{
    return handle >= INSTANCE ? (handle - INSTANCE) >> 8 : handle >= MIG ? (handle - MIG) >> 8 : handle - DEVICE;
}

/* --- the library and the driver ---------------------------------------------------------------------------------- */

const char *nvmlErrorString(int error)
{
    static char said[32];
    snprintf(said, sizeof said, "error %d", error);
    return said;
}

static int open_node(const char *node)
{
    char path[4200];
    snprintf(path, sizeof path, "%s%s", get("root"), node);
    return open(path, O_RDWR | O_CLOEXEC);
}

static int loaded(void)
{
    char path[4200], *version;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/version", get("root"));
    if (!(version = slurp(path)))
        return DRIVER_NOT_LOADED;
    int same = strstr(version, get("driver")) != NULL;
    free(version);
    return same ? SUCCESS : LIB_RM_VERSION_MISMATCH;
}

int nvmlInitWithFlags(unsigned flags)
{
    int failed = enter("nvmlInit_v2", NOBODY);
    if (!failed)
        failed = enter(__func__, NOBODY);
    if (!failed)
        failed = loaded();
    if (failed)
        return failed;
    (void)flags;
    control = open_node("/dev/nvidiactl");
    snprintf(initial, sizeof initial, "%s", get("count"));
    initialized = 1;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    close(control);
    for (unsigned i = 0; i < MOST; i++)
        if (nodes[i])
            close(nodes[i]), nodes[i] = 0;
    initialized = 0;
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    ENTER(NOBODY);
    return copy(get("driver"), version, size);
}

int nvmlSystemGetCudaDriverVersion_v2(unsigned *version)
{
    ENTER(NOBODY);
    return number(get("cuda"), version);
}

/* --- GPUs -------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetCount_v2(unsigned *number_of_gpus) /* as at the start: NVML sees no GPU come */
{
    ENTER(NOBODY);
    return number(initial, number_of_gpus);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, uintptr_t *handle)
{
    ENTER((int)index);
    const char *minor = get("gpu.%u.minor", index);
    char node[64];
    if (index >= strtoul(initial, NULL, 10))
        return INVALID_ARGUMENT;
    if (minor && !nodes[index]) {
        snprintf(node, sizeof node, "/dev/nvidia%s", minor);
        nodes[index] = open_node(node);
    }
    *handle = DEVICE + index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(uintptr_t device, char *uuid, unsigned size)
{
    ENTER(gpu(device));
    const char *value = is_mig(device) ? get("gpu.%d.mig.%d.uuid", gpu(device), slot(device))
                                       : get("gpu.%d.uuid", gpu(device));
    return copy(value, uuid, size);
}

int nvmlDeviceGetName(uintptr_t device, char *name, unsigned size)
{
    ENTER(gpu(device));
    return copy(get("gpu.%d.name", gpu(device)), name, size);
}

int nvmlDeviceGetMinorNumber(uintptr_t device, unsigned *minor)
{
    ENTER(gpu(device));
    return number(get("gpu.%d.minor", gpu(device)), minor);
}

/* "gpu.0.memory", "gpu.0.memory.used", "gpu.0.mig.3.memory.reserved". */
static int size(uintptr_t device, const char *which, unsigned long long *bytes)
{
    char whose[64];
    snprintf(whose, sizeof whose, is_mig(device) ? "gpu.%d.mig.%d" : "gpu.%d", gpu(device), slot(device));
    const char *value = which ? get("%s.memory.%s", whose, which) : get("%s.memory", whose);
    if (!value)
        return NOT_SUPPORTED;
    *bytes = strtoull(value, NULL, 10);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(uintptr_t device, Memory *memory)
{
    ENTER(gpu(device));
    unsigned long long reserved = 0;
    memory->used = 0;
    int told = size(device, "used", &memory->used);
    if (size(device, NULL, &memory->total) || (is_mig(device) && told))
        return NOT_SUPPORTED;
    size(device, "reserved", &reserved);
    memory->free = told ? 0 : memory->total - memory->used - reserved;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(uintptr_t device, MemoryV2 *memory)
{
    ENTER(gpu(device));
    if (size(device, NULL, &memory->total) || size(device, "used", &memory->used) ||
        size(device, "reserved", &memory->reserved))
        return NOT_SUPPORTED;
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(uintptr_t device, int *major, int *minor)
{
    ENTER(gpu(device));
    const char *capability = get("gpu.%d.capability", gpu(device));
    return capability && sscanf(capability, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

static int place(const char *address, Pci *pci)
{
    if (!address || sscanf(address, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3)
        return NOT_SUPPORTED;
    snprintf(pci->address, sizeof pci->address, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(uintptr_t device, Pci *pci)
{
    ENTER(gpu(device));
    int failed = place(get("gpu.%d.pci", gpu(device)), pci);
    number(get("gpu.%d.pci.id", gpu(device)), &pci->id);
    number(get("gpu.%d.pci.subsystem", gpu(device)), &pci->subsystem);
    return failed;
}

/* --- how they are joined ----------------------------------------------------------------------------------------- */

int nvmlDeviceGetNvLinkState(uintptr_t device, unsigned link, unsigned *active)
{
    ENTER(gpu(device));
    if (!get("gpu.%d.link.0", gpu(device)))
        return NOT_SUPPORTED;
    *active = 1;
    return get("gpu.%d.link.%u", gpu(device), link) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(uintptr_t device, unsigned link, unsigned *type)
{
    ENTER(gpu(device));
    const char *peer = get("gpu.%d.link.%u", gpu(device), link);
    *type = peer && !strcmp(peer, "nvswitch") ? 2 : 0;
    return peer ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(uintptr_t device, unsigned link, Pci *pci)
{
    ENTER(gpu(device));
    return place(get("gpu.%d.link.%u", gpu(device), link), pci);
}

int nvmlDeviceGetTopologyCommonAncestor(uintptr_t one, uintptr_t other, unsigned *level)
{
    ENTER(gpu(one));
    return number(get("gpu.%d.distance.%d", gpu(one), gpu(other)), level);
}

/* --- MIG --------------------------------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(uintptr_t device, unsigned *current, unsigned *pending)
{
    ENTER(gpu(device));
    int failed = number(get("gpu.%d.mig", gpu(device)), current);
    *pending = *current;
    number(get("gpu.%d.mig.pending", gpu(device)), pending);
    return failed;
}

int nvmlDeviceGetMaxMigDeviceCount(uintptr_t device, unsigned *most)
{
    ENTER(gpu(device));
    *most = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(uintptr_t device, unsigned index, uintptr_t *mig)
{
    ENTER(gpu(device));
    *mig = MIG + (gpu(device) << 8) + index;
    return get("gpu.%d.mig.%u.uuid", gpu(device), index) ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(uintptr_t mig, unsigned *id)
{
    ENTER(gpu(mig));
    return number(get("gpu.%d.mig.%d.gi", gpu(mig), slot(mig)), id);
}

int nvmlDeviceGetComputeInstanceId(uintptr_t mig, unsigned *id)
{
    ENTER(gpu(mig));
    return number(get("gpu.%d.mig.%d.ci", gpu(mig), slot(mig)), id);
}

int nvmlDeviceGetAttributes_v2(uintptr_t mig, Attributes *attributes)
{
    ENTER(gpu(mig));
    const char *value = get("gpu.%d.mig.%d.attributes", gpu(mig), slot(mig)); /* in the order of sscanf */
    if (!value)
        return NOT_SUPPORTED;
    sscanf(value, "%u %u %llu %u %u %u %u %u %u", &attributes->gpu_slices, &attributes->compute_slices,
           &attributes->memory, &attributes->sms, &attributes->copy, &attributes->decoders, &attributes->encoders,
           &attributes->jpegs, &attributes->ofas);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(uintptr_t device, unsigned id, uintptr_t *instance)
{
    ENTER(gpu(device));
    *instance = INSTANCE + (gpu(device) << 8) + id;
    return get("gpu.%d.gi.%u", gpu(device), id) ? SUCCESS : NOT_FOUND;
}

/* What a card can be partitioned into: "gpu.0.profile.9" is "id slices size most memory starts", the starts as bits. */
typedef struct { unsigned constant, id, slices, size, most, starts; unsigned long long memory; } Kind;

static int kind_of(int whose, unsigned constant, Kind *kind)
{
    const char *value = get("gpu.%d.profile.%u", whose, constant);
    kind->constant = constant;
    return value && sscanf(value, "%u %u %u %u %llu %u", &kind->id, &kind->slices, &kind->size, &kind->most,
                           &kind->memory, &kind->starts) == 6;
}

static int kind_of_id(int whose, unsigned id, Kind *kind)
{
    for (unsigned constant = 0; constant < 18; constant++)
        if (kind_of(whose, constant, kind) && kind->id == id)
            return 1;
    return 0;
}

/* A profile's id is not the constant that asks for it: where the file does not tell it, it is 40 minus that. */
int nvmlGpuInstanceGetInfo(uintptr_t instance, InstanceInfo *info)
{
    ENTER(gpu(instance));
    Kind kind;
    const char *value = get("gpu.%d.gi.%d", gpu(instance), slot(instance)); /* "constant start" */
    unsigned profile, start = 0;
    if (!value)
        return NOT_FOUND;
    sscanf(value, "%u %u", &profile, &start);
    *info = (InstanceInfo){.device = DEVICE + gpu(instance), .id = slot(instance), .profile = 40 - profile};
    if (kind_of(gpu(instance), profile, &kind)) {
        info->profile = kind.id;
        info->start = start;
        info->size = kind.size;
    }
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfo(uintptr_t device, unsigned profile, Profile *info)
{
    Kind kind;
    ENTER(gpu(device));
    if (!get("gpu.%d.profiled", gpu(device))) { /* nothing is told of this card's profiles but their ids */
        info->id = 40 - profile;
        return profile < 18 ? SUCCESS : INVALID_ARGUMENT;
    }
    if (!kind_of(gpu(device), profile, &kind))
        return profile < 18 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    *info = (Profile){.id = kind.id, .slices = kind.slices, .instances = kind.most, .memory = kind.memory};
    return SUCCESS;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(uintptr_t device, unsigned id, Placement *placements, unsigned *size)
{
    Kind kind;
    ENTER(gpu(device));
    if (!kind_of_id(gpu(device), id, &kind))
        return INVALID_ARGUMENT;
    *size = 0;
    for (unsigned start = 0; start < 8; start++)
        if (kind.starts >> start & 1) {
            if (placements)
                placements[*size] = (Placement){start, kind.size};
            ++*size;
        }
    return SUCCESS;
}

int nvmlDeviceGetGpuInstances(uintptr_t device, unsigned id, uintptr_t *instances, unsigned *size)
{
    Kind kind;
    ENTER(gpu(device));
    if (!kind_of_id(gpu(device), id, &kind))
        return INVALID_ARGUMENT;
    *size = 0;
    for (unsigned instance = 0; instance < 15; instance++) {
        const char *value = get("gpu.%d.gi.%u", gpu(device), instance);
        if (value && strtoul(value, NULL, 10) == kind.constant)
            instances[(*size)++] = INSTANCE + (gpu(device) << 8) + instance;
    }
    return SUCCESS;
}

/* The profile of a compute instance is asked for by a constant, too, and its id is another number: 90 minus that. In a
   GPU instance of 4 slices there is none of 3. */
static const unsigned SIZES[] = {1, 2, 3, 4, 7};

static unsigned slices_of(uintptr_t instance)
{
    Kind kind;
    const char *value = get("gpu.%d.gi.%d", gpu(instance), slot(instance));
    return value && kind_of(gpu(instance), strtoul(value, NULL, 10), &kind) ? kind.slices : 0;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(uintptr_t instance, unsigned profile, unsigned engine,
                                                 ComputeProfile *info)
{
    ENTER(gpu(instance));
    unsigned whole = slices_of(instance);
    if (engine || profile > 4 || SIZES[profile] > whole || (whole == 4 && SIZES[profile] == 3))
        return profile > 8 ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *info = (ComputeProfile){.id = 90 - profile, .slices = SIZES[profile], .instances = whole / SIZES[profile]};
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstances(uintptr_t instance, unsigned id, uintptr_t *parts, unsigned *size)
{
    ENTER(gpu(instance));
    if (id > 90 || id < 86)
        return INVALID_ARGUMENT;
    *size = 0;
    for (unsigned part = 0; part < 8; part++) {
        const char *value = get("gpu.%d.gi.%d.ci.%u", gpu(instance), slot(instance), part);
        if (value && strtoul(value, NULL, 10) == SIZES[90 - id])
            parts[(*size)++] = COMPUTE + (gpu(instance) << 16) + (slot(instance) << 8) + part;
    }
    return SUCCESS;
}

int nvmlComputeInstanceGetInfo_v2(uintptr_t part, ComputeInfo *info)
{
    int whose = (part - COMPUTE) >> 16, instance = part >> 8 & 0xff;
    ENTER(whose);
    *info = (ComputeInfo){.device = DEVICE + whose, .instance = INSTANCE + (whose << 8) + instance, .id = part & 0xff};
    return get("gpu.%d.gi.%d.ci.%u", whose, instance, info->id) ? SUCCESS : NOT_FOUND;
}

int nvmlGpuInstanceGetComputeInstanceById(uintptr_t instance, unsigned id, uintptr_t *part)
{
    ENTER(gpu(instance));
    *part = COMPUTE + (gpu(instance) << 16) + (slot(instance) << 8) + id;
    return get("gpu.%d.gi.%d.ci.%u", gpu(instance), slot(instance), id) ? SUCCESS : NOT_FOUND;
}

/* Whether a process computes on a GPU, on one of its instances, or on a part of one; -1 for any. */
static int used(int whose, int instance, int part)
{
    const char *value;
    for (unsigned i = 0; (value = get("gpu.%d.process.%u", whose, i)); i++) { /* "pid instance part memory" */
        unsigned pid, on, in;
        sscanf(value, "%u %u %u", &pid, &on, &in);
        if ((instance < 0 || on == (unsigned)instance) && (part < 0 || in == (unsigned)part || in == ~0u))
            return 1;
    }
    return 0;
}

static int any_instance(int whose)
{
    for (unsigned instance = 0; instance < 15; instance++)
        if (get("gpu.%d.gi.%u", whose, instance))
            return 1;
    return 0;
}

int nvmlDeviceSetMigMode(uintptr_t device, unsigned mode, unsigned *activation)
{
    int whose = gpu(device);
    ENTER(whose);
    const char *current = get("gpu.%d.mig", whose), *resetless = get("gpu.%d.field.184.0", whose);
    *activation = SUCCESS;
    if (!current)
        return NOT_SUPPORTED;
    if ((unsigned)atoi(current) == mode) {
        set(NULL, "gpu.%d.mig.pending", whose);
        return save();
    }
    if (any_instance(whose))
        return IN_USE;
    if (used(whose, -1, -1) || get("gpu.%d.client", whose)) { /* it takes effect when nobody uses the GPU any more */
        set(mode ? "1" : "0", "gpu.%d.mig.pending", whose);
        *activation = IN_USE;
    } else if (!resetless || *resetless != '1') {
        set(mode ? "1" : "0", "gpu.%d.mig.pending", whose);
        *activation = RESET_REQUIRED;
    } else
        set(mode ? "1" : "0", "gpu.%d.mig", whose);
    return save();
}

int nvmlDeviceCreateGpuInstanceWithPlacement(uintptr_t device, unsigned id, const Placement *wanted, uintptr_t *instance)
{
    int whose = gpu(device);
    unsigned taken = 0, of_kind = 0, slices = 0, media = 0, whole = 0;
    Kind kind, other;
    char value[32];
    ENTER(whose);
    const char *mode = get("gpu.%d.mig", whose);
    if (!mode || *mode != '1')
        return NOT_SUPPORTED;
    if (!kind_of_id(whose, id, &kind) || wanted->size != kind.size || wanted->start > 7 || !(kind.starts >> wanted->start & 1))
        return INVALID_ARGUMENT;
    for (unsigned constant = 0; constant < 18; constant++)
        if (kind_of(whose, constant, &other))
            for (unsigned start = 0; start < 8; start++)
                if (other.starts >> start & 1 && start + other.size > whole)
                    whole = start + other.size;
    unsigned most = 0;
    for (unsigned constant = 0; constant < 18; constant++)
        if (kind_of(whose, constant, &other) && other.slices > most)
            most = other.slices;
    for (unsigned each = 0; each < 15; each++) {
        const char *there = get("gpu.%d.gi.%u", whose, each);
        unsigned constant, start = 0;
        if (!there || sscanf(there, "%u %u", &constant, &start) != 2 || !kind_of(whose, constant, &other))
            continue;
        taken |= ((1u << other.size) - 1) << start;
        of_kind += constant == kind.constant;
        slices += other.slices;
        media += constant == 7 || constant == 8;
    }
    if (taken & (((1u << kind.size) - 1) << wanted->start) || of_kind >= kind.most || slices + kind.slices > most ||
        (media && (kind.constant == 7 || kind.constant == 8)))
        return INSUFFICIENT_RESOURCES;
    unsigned number_there = whole / kind.size - 1 + wanted->start / kind.size; /* its place in the tree */
    snprintf(value, sizeof value, "%u %u", kind.constant, wanted->start);
    set(value, "gpu.%d.gi.%u", whose, number_there);
    *instance = INSTANCE + (whose << 8) + number_there;
    return save();
}

int nvmlGpuInstanceDestroy(uintptr_t instance)
{
    ENTER(gpu(instance));
    for (unsigned part = 0; part < 8; part++)
        if (get("gpu.%d.gi.%d.ci.%u", gpu(instance), slot(instance), part))
            return IN_USE;
    if (used(gpu(instance), slot(instance), -1))
        return IN_USE;
    if (!get("gpu.%d.gi.%d", gpu(instance), slot(instance)))
        return NOT_FOUND;
    set(NULL, "gpu.%d.gi.%d", gpu(instance), slot(instance));
    return save();
}

int nvmlGpuInstanceCreateComputeInstance(uintptr_t instance, unsigned id, uintptr_t *part)
{
    int whose = gpu(instance), there = slot(instance);
    unsigned slices = 0, of_kind = 0, free_id = 8, device_slot = 0;
    char value[128], uuid[80];
    Kind kind;
    ENTER(whose);
    const char *told = get("gpu.%d.gi.%d", whose, there);
    if (!told || !kind_of(whose, strtoul(told, NULL, 10), &kind))
        return NOT_FOUND;
    if (id > 90 || id < 86 || SIZES[90 - id] > kind.slices)
        return INVALID_ARGUMENT;
    for (unsigned each = 8; each-- > 0;) {
        const char *other = get("gpu.%d.gi.%d.ci.%u", whose, there, each);
        free_id = other ? free_id : each;
        slices += other ? atoi(other) : 0;
        of_kind += other && (unsigned)atoi(other) == SIZES[90 - id];
    }
    if (free_id == 8 || slices + SIZES[90 - id] > kind.slices || of_kind >= kind.slices / SIZES[90 - id])
        return INSUFFICIENT_RESOURCES;
    while (get("gpu.%d.mig.%u.uuid", whose, device_slot))
        device_slot++;
    const char *before = get("gpu.%d.uuid.%d.%u", whose, there, free_id); /* the same place has the same UUID again */
    snprintf(uuid, sizeof uuid, "%s", before ? before : "");
    if (!before)
        snprintf(uuid, sizeof uuid, "MIG-%08x-%04x-4000-8000-%012x", whose, there, free_id);
    snprintf(value, sizeof value, "%u", SIZES[90 - id]);
    set(value, "gpu.%d.gi.%d.ci.%u", whose, there, free_id);
    set(uuid, "gpu.%d.mig.%u.uuid", whose, device_slot);
    set(uuid, "gpu.%d.uuid.%d.%u", whose, there, free_id);
    snprintf(value, sizeof value, "%d", there);
    set(value, "gpu.%d.mig.%u.gi", whose, device_slot);
    snprintf(value, sizeof value, "%u", free_id);
    set(value, "gpu.%d.mig.%u.ci", whose, device_slot);
    snprintf(value, sizeof value, "%llu", kind.memory << 20);
    set(value, "gpu.%d.mig.%u.memory", whose, device_slot);
    snprintf(value, sizeof value, "%u %u %llu %u %u 0 0 0 0", kind.slices, SIZES[90 - id], kind.memory,
             16 * SIZES[90 - id], kind.slices);
    set(value, "gpu.%d.mig.%u.attributes", whose, device_slot);
    *part = COMPUTE + (whose << 16) + (there << 8) + free_id;
    return save();
}

int nvmlComputeInstanceDestroy(uintptr_t part)
{
    int whose = (part - COMPUTE) >> 16, there = part >> 8 & 0xff, id = part & 0xff;
    ENTER(whose);
    if (!get("gpu.%d.gi.%d.ci.%d", whose, there, id))
        return NOT_FOUND;
    if (used(whose, there, id))
        return IN_USE;
    set(NULL, "gpu.%d.gi.%d.ci.%d", whose, there, id);
    for (unsigned each = 0; each < MOST; each++) {
        const char *instance = get("gpu.%d.mig.%u.gi", whose, each), *own = get("gpu.%d.mig.%u.ci", whose, each);
        if (instance && own && atoi(instance) == there && atoi(own) == id) {
            static const char *const KEYS[] = {"uuid", "gi", "ci", "memory", "attributes"};
            for (unsigned key = 0; key < 5; key++)
                set(NULL, "gpu.%d.mig.%u.%s", whose, each, KEYS[key]);
        }
    }
    return save();
}

/* --- how they do ------------------------------------------------------------------------------------------------- */

/* "gpu.0.field.230.0" or, of one NVLink, "gpu.0.field.161.4". "+" is one more each time, "!15" an error of its own. */
int nvmlDeviceGetFieldValues(uintptr_t device, int wanted, Field *fields)
{
    static unsigned long long growing;
    ENTER(gpu(device));
    for (Field *each = fields; each < fields + wanted; each++) {
        const char *value = get("gpu.%d.field.%u.%u", gpu(device), each->field, each->scope);
        each->error = !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : SUCCESS;
        each->type = UNSIGNED_LONG_LONG;
        if (!each->error)
            each->value = *value == '+' ? ++growing : strtoull(value, NULL, 10);
    }
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(uintptr_t device, unsigned long long *reasons)
{
    ENTER(gpu(device));
    const char *value = get("gpu.%d.clocks", gpu(device));
    *reasons = value ? strtoull(value, NULL, 10) : 0;
    return value ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrPcieLinkWidth(uintptr_t device, unsigned *width)
{
    ENTER(gpu(device));
    return number(get("gpu.%d.width", gpu(device)), width);
}

int nvmlDeviceGetMaxPcieLinkWidth(uintptr_t device, unsigned *width)
{
    ENTER(gpu(device));
    return number(get("gpu.%d.width.max", gpu(device)), width);
}

int nvmlDeviceGetGpuFabricInfoV(uintptr_t device, FabricInfo *info)
{
    ENTER(gpu(device));
    const char *value = get("gpu.%d.fabric", gpu(device)); /* "state status clique 16-bytes" */
    unsigned state;
    int end = 0;
    if (!value)
        return NOT_SUPPORTED;
    sscanf(value, "%u %u %u %n", &state, &info->status, &info->clique, &end);
    for (unsigned i = 0; end && i < 16; i++)
        sscanf(value + end + 2 * i, "%2hhx", &info->cluster[i]);
    info->state = state;
    return SUCCESS;
}

/* "gpu.0.license": of a virtual GPU, whether it is granted */
int nvmlDeviceGetVirtualizationMode(uintptr_t device, unsigned *mode)
{
    ENTER(gpu(device));
    *mode = get("gpu.%d.license", gpu(device)) ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetGridLicensableFeatures_v4(uintptr_t device, LicensableFeatures *told)
{
    ENTER(gpu(device));
    const char *value = get("gpu.%d.license", gpu(device));
    if (!value)
        return NOT_SUPPORTED;
    told->supported = told->count = 1;
    told->features[0].code = 1;
    told->features[0].state = atoi(value);
    return SUCCESS;
}

/* --- who uses them ----------------------------------------------------------------------------------------------- */

/* "gpu.0.process.0" is "pid, GPU instance, compute instance, bytes"; those of a MIG device are told of its GPU alone. */
static int list(uintptr_t device, const char *which, unsigned *size, Process *processes)
{
    unsigned room = *size, found = 0;
    const char *value;
    while (!is_mig(device) && (value = get("gpu.%d.%s.%u", gpu(device), which, found))) {
        if (found < room)
            sscanf(value, "%u %u %u %llu", &processes[found].pid, &processes[found].gpu_instance,
                   &processes[found].compute_instance, &processes[found].memory);
        found++;
    }
    *size = found;
    return found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned *size, Process *processes)
{
    ENTER(gpu(device));
    return list(device, "process", size, processes);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(uintptr_t device, unsigned *size, Process *processes)
{
    ENTER(gpu(device));
    return list(device, "mps", size, processes);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(uintptr_t device, unsigned *size, Process *processes)
{
    ENTER(gpu(device));
    (void)processes;
    *size = 0;
    return get("gpu.%d.mig", gpu(device)) && *get("gpu.%d.mig", gpu(device)) == '1' ? NOT_SUPPORTED : SUCCESS;
}

/* "gpu.0.use.0" is "pid percent"; with a third number, a time, it is listed only to who has not seen that yet. */
int nvmlDeviceGetProcessUtilization(uintptr_t device, Use *uses, unsigned *size, unsigned long long seen)
{
    unsigned room = uses ? *size : 0, found = 0, place = 0;
    const char *value;
    struct timespec now;
    ENTER(gpu(device));
    if (!get("gpu.%d.uses", gpu(device)))
        return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    while ((value = get("gpu.%d.use.%u", gpu(device), place++))) {
        Use use = {.timestamp = now.tv_sec * 1000000ULL + now.tv_nsec / 1000};
        sscanf(value, "%u %u %llu", &use.pid, &use.sm, &use.timestamp);
        if (found < room)
            uses[found] = use;
        found++;
    }
    (void)seen;
    *size = found;
    return !found ? NOT_FOUND : found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

/* --- what they do ------------------------------------------------------------------------------------------------ */

int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    ENTER(NOBODY);
    return copy(get("nvml"), version, size);
}

#define NUMBER(function, key)                                \
    int function(uintptr_t device, unsigned *value)          \
    {                                                        \
        ENTER(gpu(device));                                  \
        return number(get("gpu.%d." key, gpu(device)), value); \
    }
#define TEXT(function, key)                                        \
    int function(uintptr_t device, char *value, unsigned size)     \
    {                                                              \
        ENTER(gpu(device));                                        \
        return copy(get("gpu.%d." key, gpu(device)), value, size); \
    }
#define ONE_OF(function, key)                                                \
    int function(uintptr_t device, unsigned which, unsigned *value)          \
    {                                                                        \
        ENTER(gpu(device));                                                  \
        return number(get("gpu.%d." key ".%u", gpu(device), which), value);  \
    }
#define WITH_PERIOD(function, key)                                   \
    int function(uintptr_t device, unsigned *value, unsigned *period) \
    {                                                                \
        ENTER(gpu(device));                                          \
        *period = 167000;                                            \
        return number(get("gpu.%d." key, gpu(device)), value);       \
    }

NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power.limit")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "generation.max")
NUMBER(nvmlDeviceGetBrand, "brand")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "image")
ONE_OF(nvmlDeviceGetClockInfo, "clock")
ONE_OF(nvmlDeviceGetTemperature, "temperature")
WITH_PERIOD(nvmlDeviceGetEncoderUtilization, "encoder")
WITH_PERIOD(nvmlDeviceGetDecoderUtilization, "decoder")

int nvmlDeviceGetInforomVersion(uintptr_t device, unsigned which, char *version, unsigned size)
{
    ENTER(gpu(device));
    return copy(get("gpu.%d.inforom.%u", gpu(device), which), version, size);
}

int nvmlDeviceGetUtilizationRates(uintptr_t device, Utilization *rates)
{
    ENTER(gpu(device));
    const char *value = get("gpu.%d.utilization", gpu(device)); /* "GPU memory" */
    return value && sscanf(value, "%u %u", &rates->gpu, &rates->memory) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlGpmQueryDeviceSupport(uintptr_t device, GpmSupport *support)
{
    ENTER(gpu(device));
    support->supported = get("gpu.%d.gpm", gpu(device)) != NULL;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(GpmSample **sample)
{
    ENTER(NOBODY);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(GpmSample *sample)
{
    ENTER(NOBODY);
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(uintptr_t device, GpmSample *sample)
{
    ENTER(gpu(device));
    *sample = (GpmSample){gpu(device), NOBODY};
    return SUCCESS;
}

int nvmlGpmMigSampleGet(uintptr_t device, unsigned instance, GpmSample *sample)
{
    ENTER(gpu(device));
    *sample = (GpmSample){gpu(device), instance};
    return get("gpu.%d.gi.%u", gpu(device), instance) ? SUCCESS : INVALID_ARGUMENT;
}

/* "gpu.0.gpm.2", "gpu.0.gi.3.gpm.2" of a GPU instance; "!3" is an error of the metric's own. */
int nvmlGpmMetricsGet(GpmQuestion *question)
{
    int index = question->newer->gpu, instance = question->newer->instance;
    ENTER(index);
    if (question->older->instance != instance || question->older->gpu != index || question->older == question->newer)
        return INVALID_ARGUMENT;
    for (GpmMetric *each = question->metrics; each < question->metrics + question->size; each++) {
        const char *value = instance == NOBODY ? get("gpu.%d.gpm.%u", index, each->id)
                                               : get("gpu.%d.gi.%d.gpm.%u", index, instance, each->id);
        each->error = !value ? NOT_SUPPORTED : *value == '!' ? atoi(value + 1) : SUCCESS;
        each->value = value ? atof(value) : 0;
    }
    return SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------------ */

static int open_pipe(const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

int nvmlEventSetCreate(uintptr_t *set)
{
    ENTER(NOBODY);
    events = open_pipe("events");
    memset(registered, 0, sizeof registered);
    *set = SET;
    return SUCCESS;
}

int nvmlEventSetFree(uintptr_t set)
{
    (void)set;
    ENTER(NOBODY);
    close(events);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(uintptr_t device, unsigned long long *types)
{
    ENTER(gpu(device));
    const char *value = get("gpu.%d.events", gpu(device));
    *types = value ? strtoull(value, NULL, 10) : 0;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(uintptr_t device, unsigned long long types, uintptr_t set)
{
    ENTER(gpu(device));
    (void)set;
    registered[gpu(device)] |= types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(uintptr_t set, Event *event, unsigned milliseconds)
{
    ENTER(NOBODY);
    struct pollfd ready = {.fd = events, .events = POLLIN};
    Record record;
    (void)set;
    while (poll(&ready, 1, milliseconds) == 1 && read(events, &record, sizeof record) == sizeof record)
        if (record.gpu < MOST && registered[record.gpu] & record.type) {
            *event = (Event){DEVICE + record.gpu, record.type, record.data,
                             record.gpu_instance, record.compute_instance};
            return SUCCESS;
        }
    return TIMEOUT;
}

int nvmlSystemEventSetCreate(SetRequest *request)
{
    ENTER(NOBODY);
    bindings = open_pipe("bindings");
    request->set = BINDINGS;
    return SUCCESS;
}

int nvmlSystemRegisterEvents(RegisterRequest *request)
{
    ENTER(NOBODY);
    (void)request;
    return SUCCESS;
}

int nvmlSystemEventSetWait(WaitRequest *request)
{
    ENTER(NOBODY);
    struct pollfd ready = {.fd = bindings, .events = POLLIN};
    Binding binding;
    request->count = 0;
    while (request->count < request->size && poll(&ready, 1, request->milliseconds) == 1 &&
           read(bindings, &binding, sizeof binding) == sizeof binding)
        request->events[request->count++] = (SystemEvent){binding.type, binding.gpu_id};
    return request->count ? SUCCESS : TIMEOUT;
}

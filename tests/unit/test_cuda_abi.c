/* Compares driver/cuda_abi.h and driver.def with NVIDIA's cuda.h, where one is installed: the value
 * of every constant, size and members' places of every structure, and every function's parameters.
 * Two probes are compiled, which differ in the header alone; skipped without cuda.h or compiler. */
#define _GNU_SOURCE
#include <ctype.h>
#include <unistd.h>

#include "unit.h"

static const char layouts[] =
    "#define SIZE(t) printf(\"size \" #t \" %zu\\n\", sizeof(t));\n"
    "#define AT(t, m) printf(\"at \" #t \".\" #m \" %zu\\n\", offsetof(t, m));\n"
    "SIZE(CUdevice) SIZE(CUdeviceptr) SIZE(CUmemGenericAllocationHandle) SIZE(CUuuid)\n"
    "SIZE(CUmemLocation) SIZE(CUmemAllocationProp) SIZE(CUmulticastObjectProp)\n"
    "SIZE(CUmemAccessDesc) SIZE(CUstreamBatchMemOpParams) SIZE(CUresult)\n"
    "AT(CUmemLocation, id) AT(CUmemAllocationProp, requestedHandleTypes)\n"
    "AT(CUmemAllocationProp, location) AT(CUmemAllocationProp, allocFlags)\n"
    "AT(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)\n"
    "AT(CUmemAllocationProp, allocFlags.usage) AT(CUmulticastObjectProp, numDevices)\n"
    "AT(CUmulticastObjectProp, size) AT(CUmulticastObjectProp, handleTypes)\n"
    "AT(CUmulticastObjectProp, flags) AT(CUmemAccessDesc, flags)\n"
    "{ CUstreamBatchMemOpParams p; char *b = (char *)&p;\n"
    "#define OF(m) printf(\"param \" #m \" %td\\n\", (char *)&p.OP.m - b);\n"
    "OF(operation) OF(address) OF(VALUE64) OF(flags) OF(alias) }\n";

static char folder[] = "/tmp/smfar-abi-XXXXXX";

static FILE *open_in_folder(const char *name, const char *mode)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, mode);
    REQUIRE(file != NULL, "cannot open %s", path);
    return file;
}

/* Prints every constant that cuda_abi.h names: words that begin with CU and, in capitals, are
 * followed by a value. */
static void write_constants(FILE *probe)
{
    FILE *header = fopen("csrc/driver/cuda_abi.h", "r");
    char line[256], name[128];
    REQUIRE(header != NULL, "run from the project's root");
    while (fgets(line, sizeof line, header)) {
        for (char *at = line; (at = strstr(at, "CU")) != NULL; at += 2) {
            int length = 0;
            if (at > line && (isalnum((unsigned char)at[-1]) || at[-1] == '_')) continue;
            if (sscanf(at, "%127[A-Z0-9_]%n", name, &length) != 1) continue;
            char *after = at + length;
            int constant = strncmp(after, " = ", 3) == 0 ||
                           (strncmp(line, "#define CU", 10) == 0 && *after == ' ');
            if (constant) fprintf(probe, "printf(\"%s %%lld\\n\", (long long)%s);\n", name, name);
        }
    }
    fclose(header);
}

static void write_probe(void)
{
    FILE *probe = open_in_folder("probe.c", "w");
    fprintf(probe, "#include <stddef.h>\n#include <stdio.h>\n#include ABI\nint main(void) {\n%s",
            layouts);
    write_constants(probe);
    fprintf(probe, "return 0; }\n");
    fclose(probe);
    /* each declaration takes the function's address, so its type is compared */
    probe = open_in_folder("functions.c", "w");
    fprintf(probe, "#include <stdint.h>\n#include <cuda.h>\n"
                   "#if CUDA_VERSION >= 13000\n" /* where the name means a later variant */
                   "#undef cuStreamGetCaptureInfo\n"
                   "CUresult cuStreamGetCaptureInfo(CUstream, CUstreamCaptureStatus *, cuuint64_t "
                   "*, CUgraph *, const CUgraphNode **, size_t *);\n#endif\n"
                   "#define REQUIRED(name, params) extern CUresult(*check_##name) params;"
                   " CUresult(*check_##name) params = name;\n"
                   "#define OPTIONAL REQUIRED\n#include \"csrc/driver/driver.def\"\n"
                   "#define REQUIRED(name, params) extern CUresult(*check_##name) params;"
                   " CUresult(*check_##name) params = name;\n"
                   "#include \"csrc/soft/graphs.def\"\n");
    fclose(probe);
}

/* Runs a command; what it prints is in the file when a test fails. */
static int run(const char *format, const char *a, const char *b)
{
    const char *cc = getenv("CC");
    char command[2048], tail[1024];
    snprintf(tail, sizeof tail, format, a, b);
    snprintf(command, sizeof command, "cd '%s' && %s %s", folder, cc && *cc ? cc : "cc", tail);
    return system(command);
}

static int has_cuda_h(const char *path)
{
    char file[512];
    snprintf(file, sizeof file, "%s/cuda.h", path);
    return access(file, R_OK) == 0;
}

static const char *cuda_include(void)
{
    static char path[400];
    const char *home = getenv("CUDA_HOME");
    snprintf(path, sizeof path, "%s/include", home ? home : "/usr/local/cuda");
    if (has_cuda_h(path)) return path;
    return has_cuda_h("/usr/local/cuda/include") ? "/usr/local/cuda/include" : NULL;
}

static void compare_lines(void)
{
    FILE *ours = open_in_folder("ours.txt", "r"), *theirs = open_in_folder("theirs.txt", "r");
    char a[256], b[256];
    int lines = 0;
    while (fgets(a, sizeof a, ours) && fgets(b, sizeof b, theirs)) {
        a[strcspn(a, "\n")] = b[strcspn(b, "\n")] = 0;
        EXPECT(strcmp(a, b) == 0, "ours \"%s\", cuda.h \"%s\"", a, b);
        lines++;
    }
    EXPECT(lines > 100, "only %d lines were compared", lines);
    fclose(ours);
    fclose(theirs);
}

static void remove_folder(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    EXPECT_EQ(system(command), 0);
}

int main(void)
{
    const char *include = cuda_include();
    char root[400];
    if (include == NULL) SKIP("no cuda.h (CUDA_HOME, /usr/local/cuda)");
    REQUIRE(mkdtemp(folder) != NULL && getcwd(root, sizeof root) != NULL, "no folder");
    if (run("--version > cc.txt 2>&1%s%s", "", "") != 0) SKIP("no C compiler");
    write_probe();
    REQUIRE(run("'-DABI=\"%s/csrc/driver/cuda_abi.h\"' -DOP=value -DVALUE64=value64 probe.c -o "
                "ours && ./ours > ours.txt%s",
                root, "") == 0,
            "our header");
    REQUIRE(run("'-DABI=\"%s/cuda.h\"' -DOP=waitValue -DVALUE64=value64 -I'%s' probe.c -o theirs "
                "&& ./theirs > theirs.txt",
                include, include) == 0,
            "cuda.h lacks a name of ours");
    compare_lines();
    EXPECT(run("-Werror -fsyntax-only -I'%s' -I'%s' functions.c", include, root) == 0,
           "driver.def and cuda.h differ");
    remove_folder();
    return unit_end();
}

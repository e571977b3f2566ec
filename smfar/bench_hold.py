"""A kernel that holds every multiprocessor of this rank's GPU, for bench_held.py.

It is launched through the driver, since no operator of torch's fills a GPU for as long as one
likes: two blocks of 1024 threads leave an SM no room for another block. Each block tells the host
that it is there, and spins until the host lets it go, or a deadline has passed. Only one of them
looks at host memory: reads of all of them over PCIe would slow copies down.
"""

import ctypes
import functools
import time

import torch

LIMIT_NS = 20 * 10**9  # by then whoever forgot to let go is gone
START_S = 5.0
BLOCK_THREADS = 1024

PTX = b"""
.version 7.1
.target sm_80
.address_size 64
// words[0]: nonzero lets go, written by the host; words[1 + block]: set to 1 by that block. relay,
// on the GPU: the same, written by block 0.
.visible .entry smfar_bench_hold(.param .u64 words, .param .u64 relay, .param .u64 limit_ns)
.maxntid 1024, 1, 1
{
    .reg .pred %waits, %relays;
    .reg .b32 %thread, %block, %go;
    .reg .b64 %words, %relay, %look, %mine, %limit, %begin, %now;
    ld.param.u64 %words, [words];
    ld.param.u64 %relay, [relay];
    ld.param.u64 %limit, [limit_ns];
    mov.u64 %begin, %globaltimer;
    mov.u32 %thread, %tid.x;
    setp.ne.u32 %waits, %thread, 0;
    @%waits bra TOGETHER;
    mov.u32 %block, %ctaid.x;
    mad.wide.u32 %mine, %block, 4, %words;
    st.relaxed.sys.global.u32 [%mine + 4], 1; // partner: the host's poll in Holder.__enter__
    setp.eq.u32 %relays, %block, 0;
    selp.b64 %look, %words, %relay, %relays;
SPIN:
    ld.relaxed.sys.global.u32 %go, [%look]; // partner: Holder.__exit__, or block 0 below
    setp.ne.u32 %waits, %go, 0;
    @%waits bra GO;
    nanosleep.u32 1000;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %waits, %now, %limit;
    @%waits bra SPIN;
GO:
    @%relays st.relaxed.sys.global.u32 [%relay], 1; // partner: SPIN of the other blocks
TOGETHER:
    bar.sync 0;
    ret;
}
"""


@functools.cache
def driver():
    return ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(driver(), name)(*arguments)
    if result:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError(f"{name} failed: {(text.value or b'unknown error').decode()} ({result})")


def current_stream():
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def copy(target, source, bytes_):
    """From one device address to another, on the current stream."""
    addresses = ctypes.c_uint64(target), ctypes.c_uint64(source)
    call("cuMemcpyAsync", *addresses, ctypes.c_size_t(bytes_), current_stream())


def load(name=b"smfar_bench_hold"):
    """The kernel, in the current context; its module stays until the process ends."""
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadDataEx", ctypes.byref(module), PTX, 0, None, None)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, name)
    return kernel


def launch(kernel, words, relay, blocks, threads, stream, limit_ns):
    """Addresses of 1 + blocks words that the host and the GPU share, and of one on the GPU."""
    values = [ctypes.c_uint64(value) for value in (words, relay, limit_ns)]
    pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
    parameters = (ctypes.c_void_p * len(pointers))(*pointers)
    numbers = map(ctypes.c_uint, (blocks, 1, 1, threads, 1, 1, 0))
    call("cuLaunchKernel", kernel, *numbers, stream, parameters, None)


class Holder:
    """`with holder:` every SM is taken. Nothing that waits for the whole GPU may be called inside:
    no torch.cuda.synchronize, no first use of a kernel, no new memory."""

    def __init__(self):
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        per_sm = properties.max_threads_per_multi_processor // BLOCK_THREADS
        self.blocks = properties.multi_processor_count * per_sm
        self.words = torch.zeros(1 + self.blocks, dtype=torch.int32, pin_memory=True)
        self.stream, self.small_stream = torch.cuda.Stream(), torch.cuda.Stream()
        device = torch.device("cuda", torch.cuda.current_device())
        self.relay = torch.zeros(1, dtype=torch.int32, device=device)
        self.small = torch.zeros(1, device=device)
        self.small_done = torch.cuda.Event()
        self.kernel = load()
        with self:  # whatever is loaded at a first launch
            pass

    def probe(self):
        """A small kernel, which ends once there is room for it."""
        with torch.cuda.stream(self.small_stream):
            self.small.add_(1)
            self.small_done.record()

    def holds(self):
        """Nothing has found room since `with` began."""
        return not self.small_done.query()

    def __enter__(self):
        self.probe()
        self.relay.zero_()
        torch.cuda.synchronize()
        self.words.zero_()
        stream = ctypes.c_void_p(self.stream.cuda_stream)
        addresses = self.words.data_ptr(), self.relay.data_ptr()
        launch(self.kernel, *addresses, self.blocks, BLOCK_THREADS, stream, LIMIT_NS)
        limit = time.monotonic() + START_S
        while not self.words[1:].all():
            if time.monotonic() > limit:
                came = int(self.words[1:].sum())
                self.__exit__()
                raise RuntimeError(
                    f"bench held: {came} of {self.blocks} blocks came within {START_S:.0f} s;"
                    " is something else running on this GPU?"
                )
            time.sleep(1e-4)
        self.probe()
        return self

    def __exit__(self, *raised):
        self.words[0] = 1
        torch.cuda.synchronize()

//! The border to the CUDA driver: a device, its memory, kernels and their starts. Nothing else of `cuda/` is `unsafe`.
//!
//! The driver's library is loaded when a device is opened, so a machine without one gets an error and no more. All work goes to
//! one stream and runs in order; what is read back waits for it.

#![allow(unsafe_code)]

use cudarc::driver::{DriverError, result, sys};
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::Arc;

/// A device with its stream.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    arch: (i32, i32),
    is_blocking: bool,
}

// SAFETY: contexts and streams of the driver may be used from any thread; each call makes the context current first.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: both were made by `open` and are not used any more.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A piece of device memory; given back when it is dropped.
pub struct Memory {
    device: Device,
    address: u64,
    bytes: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 && self.device.enter().is_ok() {
            // SAFETY: the address came from the allocator and is given back once.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// A kernel, loaded.
pub struct Kernel {
    // Kept: the function lives in it.
    _module: Module,
    function: sys::CUfunction,
    /// Bytes of each parameter.
    sizes: Vec<usize>,
    /// Bytes of shared memory that a start gives.
    dynamic_bytes: u32,
}

struct Module {
    device: Device,
    module: sys::CUmodule,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Kernel {}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the module was loaded once and is unloaded once.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// Starts that were recorded once and run as one.
pub struct Recording {
    device: Device,
    graph: sys::CUgraphExec,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the graph was made once and is given back once.
            let _ = unsafe { result::graph::exec_destroy(self.graph) };
        }
    }
}

/// A place in the order of what was started, with its time.
pub struct Mark {
    device: Device,
    event: sys::CUevent,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Mark {}

/// Memory of the host that the device copies from and to by itself, while the host goes on. Nothing in it is touched again before the
/// copies that were asked for are done.
pub struct Staging {
    device: Device,
    start: *mut u8,
    bytes: usize,
    used: usize,
    /// Behind all copies, unless one was asked for since.
    mark: Mark,
    is_marked: bool,
}

// SAFETY: the memory belongs to this value alone; handles of the driver may be used from any thread.
unsafe impl Send for Staging {}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.bytes > 0 && self.device.wait().is_ok() {
            // SAFETY: the memory came from the driver, is given back once, and no copy is under way.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}

/// Pieces of staging memory begin at multiples of this.
const PIECE_BYTES: usize = 64;

impl Drop for Mark {
    fn drop(&mut self) {
        if self.device.enter().is_ok() {
            // SAFETY: the event was made once and is given back once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

impl Mark {
    /// Moves the mark behind everything that was started until now.
    pub fn renew(&self) -> Result<(), String> {
        self.device.enter()?;
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(self.event, self.device.inner.stream) }.map_err(text("a mark"))
    }

    /// Whether everything before it is done. An error is that of a kernel before.
    pub fn is_reached(&self) -> Result<bool, String> {
        self.device.enter()?;
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.event) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(text(SOME_KERNEL)(error)),
        }
    }

    /// Waits until everything before it is done. An error is that of a kernel before.
    pub fn wait(&self) -> Result<(), String> {
        self.device.enter()?;
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }.map_err(text(SOME_KERNEL))
    }

    /// Microseconds on the device from this mark to a later one; both have been reached.
    pub fn micros_to(&self, later: &Mark) -> Result<f32, String> {
        self.device.enter()?;
        // SAFETY: both events are alive and were recorded.
        let millis =
            unsafe { result::event::elapsed(self.event, later.event) }.map_err(text("a time on the device"))?;
        Ok(millis * 1e3)
    }
}

/// A parameter's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// An address of device memory.
    Address(u64),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// A binary32 number.
    F32(f32),
    /// A map for the copy engine, by value.
    Map([u64; MAP_WORDS]),
    /// What a kernel knows of other ranks, by value.
    Peers([u64; PEERS_WORDS]),
    /// Token rows that ranks bring, by value.
    Brought([u64; BROUGHT_WORDS]),
}

/// Words of a map for the copy engine.
const MAP_WORDS: usize = 16;
/// Words of `Peers` of the templates.
pub const PEERS_WORDS: usize = 32;
/// Words of `Brought` of the templates.
pub const BROUGHT_WORDS: usize = 13;

/// A start: blocks, threads of each, and whether it may begin while the kernel before it ends. Kernels wait for those before
/// them by themselves.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 2],
    /// Threads of a block.
    pub threads: u32,
    /// Whether it may begin early.
    pub early: bool,
}

impl Argument {
    /// Size.
    pub fn bytes(self) -> usize {
        match self {
            Argument::Address(_) | Argument::I64(_) => 8,
            Argument::I32(_) | Argument::F32(_) => 4,
            Argument::Map(_) => MAP_WORDS * 8,
            Argument::Peers(_) => PEERS_WORDS * 8,
            Argument::Brought(_) => BROUGHT_WORDS * 8,
        }
    }

    fn cell(self) -> [u64; PEERS_WORDS] {
        let mut cell = [0; PEERS_WORDS];
        cell[0] = match self {
            Argument::Address(x) => x,
            Argument::I64(x) => x as u64,
            Argument::I32(x) => u64::from(x as u32),
            Argument::F32(x) => u64::from(x.to_bits()),
            Argument::Map(words) => {
                cell[..MAP_WORDS].copy_from_slice(&words);
                return cell;
            }
            Argument::Peers(words) => return words,
            Argument::Brought(words) => {
                cell[..BROUGHT_WORDS].copy_from_slice(&words);
                return cell;
            }
        };
        cell
    }
}

/// The driver's own switch: whether every start ends before the next, so that a fault is told where it happens.
const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
/// What is said where several kernels may have failed.
const SOME_KERNEL: &str = "a kernel ended in a fault (with CUDA_LAUNCH_BLOCKING=1 the error names it)";

fn text(what: &str) -> impl FnOnce(DriverError) -> String + '_ {
    move |error| {
        let name = error.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        format!("{what}: {name} (code {})", error.0 as u32)
    }
}

impl Device {
    /// Opens the device of this number. The error says what is missing.
    pub fn open(number: usize) -> Result<Device, String> {
        // SAFETY: only asks whether the library can be loaded; the calls below do so through it.
        if !unsafe { sys::is_culib_present() } {
            return Err("the CUDA driver's library `libcuda.so.1` is not on this machine".to_owned());
        }
        result::init().map_err(text("the CUDA driver does not start"))?;
        let device = i32::try_from(number).map_err(|_| format!("there is no CUDA device {number}"))?;
        let device = result::device::get(device).map_err(text(&format!("there is no CUDA device {number}")))?;
        let name = result::device::get_name(device).map_err(text("the device has no name"))?;
        // SAFETY: the device was given by the driver.
        let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map_err(text("a device attribute"));
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let arch = (attribute(MAJOR)?, attribute(MINOR)?);
        // SAFETY: the device was given by the driver; the context is released when the device is dropped.
        let context = unsafe {
            let context = result::primary_ctx::retain(device).map_err(text("no context"))?;
            result::ctx::set_current(context).map_err(text("no context"))?;
            context
        };
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(text("no stream"))?;
        let is_blocking = std::env::var_os(BLOCKING).is_some_and(|on| on == "1");
        Ok(Device { inner: Arc::new(Inner { device, context, stream, name, arch, is_blocking }) })
    }

    /// How many devices there are.
    pub fn count() -> usize {
        // SAFETY: only asks whether the library can be loaded; the calls behind it do so through it.
        let known = unsafe { sys::is_culib_present() } && result::init().is_ok();
        if known { result::device::get_count().map_or(0, |n| n.max(0) as usize) } else { 0 }
    }

    /// Lets kernels of this device read and write the memory of another.
    pub fn sees(&self, other: &Device) -> Result<(), String> {
        if self.inner.device == other.inner.device {
            return Ok(());
        }
        self.enter()?;
        // SAFETY: both contexts are alive.
        let found = unsafe { sys::cuCtxEnablePeerAccess(other.inner.context, 0) };
        if found == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(());
        }
        found.result().map_err(text("the devices do not see each other's memory"))
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether every start ends before the next, as the environment asks for.
    pub fn is_blocking(&self) -> bool {
        self.inner.is_blocking
    }

    /// Compute capability: major, minor.
    pub fn arch(&self) -> (i32, i32) {
        self.inner.arch
    }

    fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is alive as long as the device is.
        unsafe { result::ctx::set_current(self.inner.context) }.map_err(text("the device's context"))
    }

    /// Memory of this size; what it holds is anything.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, String> {
        self.enter()?;
        // SAFETY: nothing reads the memory before it is written, save kernels, whose errors are theirs.
        let address = match bytes {
            0 => 0,
            n => unsafe { result::malloc_sync(n) }.map_err(text(&format!("{n} bytes of device memory")))?,
        };
        Ok(Memory { device: self.clone(), address, bytes })
    }

    /// A map of a matrix of 2-byte numbers, rows side by side, for the copy engine: it brings 64 columns of `box_rows` rows at
    /// once, their 16-byte pieces swizzled over 128 bytes; what lies outside the matrix is 0.
    pub fn map(&self, address: u64, columns: u64, rows: u64, box_rows: u64) -> Result<Argument, String> {
        self.enter()?;
        let mut map = sys::CUtensorMap { opaque: [0; MAP_WORDS] };
        let (lengths, stride) = ([columns, rows], [columns * 2]);
        let (box_lengths, steps) = ([64, box_rows as u32], [1u32, 1]);
        // SAFETY: all arrays have the two, or one, elements that a matrix has; the driver checks what they say.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                address as *mut c_void,
                lengths.as_ptr(),
                stride.as_ptr(),
                box_lengths.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        made.result().map_err(text("a map of a matrix for the copy engine"))?;
        Ok(Argument::Map(map.opaque))
    }

    /// Loads a kernel of so many parameters from machine code; each start gives it `dynamic_bytes` of shared memory.
    pub fn load(&self, cubin: &[u8], name: &str, parameters: usize, dynamic_bytes: u32) -> Result<Kernel, String> {
        self.enter()?;
        let symbol = CString::new(name).map_err(|_| format!("kernel `{name}` has a zero byte in its name"))?;
        // SAFETY: the image is a whole ELF file, which the driver checks; the function lives as long as its module.
        unsafe {
            let module = result::module::load_data(cubin.as_ptr().cast::<c_void>())
                .map_err(text(&format!("kernel `{name}` cannot be loaded")))?;
            let module = Module { device: self.clone(), module };
            let function = result::module::get_function(module.module, symbol)
                .map_err(text(&format!("the machine code has no kernel `{name}`")))?;
            let mut sizes = Vec::new();
            for index in 0..parameters {
                let (mut offset, mut size) = (0usize, 0usize);
                sys::cuFuncGetParamInfo(function, index, &mut offset, &mut size)
                    .result()
                    .map_err(text(&format!("kernel `{name}` has fewer than {parameters} parameters")))?;
                sizes.push(size);
            }
            if dynamic_bytes > 0 {
                let what = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                result::function::set_function_attribute(function, what, dynamic_bytes as i32)
                    .map_err(text(&format!("kernel `{name}` gets no {dynamic_bytes} bytes of shared memory")))?;
            }
            Ok(Kernel { _module: module, function, sizes, dynamic_bytes })
        }
    }

    /// Starts a kernel behind everything that was started before, and waits for it where the environment asks for that.
    pub fn start(&self, kernel: &Kernel, shape: Shape, arguments: &[Argument]) -> Result<(), String> {
        let given: Vec<usize> = arguments.iter().map(|a| a.bytes()).collect();
        if given != kernel.sizes {
            return Err(format!("parameters of {given:?} bytes are given, the kernel takes {:?}", kernel.sizes));
        }
        self.enter()?;
        let mut cells: Vec<[u64; PEERS_WORDS]> = arguments.iter().map(|a| a.cell()).collect();
        let mut params: Vec<*mut c_void> = cells.iter_mut().map(|c| c.as_mut_ptr().cast()).collect();
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: shape.grid[0],
            gridDimY: shape.grid[1],
            gridDimZ: 1,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.dynamic_bytes,
            hStream: self.inner.stream,
            attrs: &mut early,
            numAttrs: u32::from(shape.early),
        };
        // SAFETY: number and sizes of the parameters are the kernel's; their cells, and the attribute, outlive the call, which
        // copies them.
        unsafe { sys::cuLaunchKernelEx(&config, kernel.function, params.as_mut_ptr(), std::ptr::null_mut()) }
            .result()
            .map_err(text(if self.inner.is_blocking {
                "it does not start or ends in a fault"
            } else {
                "a kernel does not start"
            }))?;
        if self.inner.is_blocking { self.wait() } else { Ok(()) }
    }

    /// Records what `work` starts, without running it. It may start kernels and copies on the device, nothing else.
    pub fn record(&self, work: impl FnOnce() -> Result<(), String>) -> Result<Recording, String> {
        self.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive; whatever `work` does, the recording is ended before this returns.
        unsafe {
            result::stream::begin_capture(self.inner.stream, mode).map_err(text("a recording does not begin"))?;
            let done = work();
            let graph = result::stream::end_capture(self.inner.stream).map_err(text("a recording does not end"))?;
            let made = done.and_then(|()| {
                result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0))
                    .map_err(text("a recording cannot run"))
            });
            let _ = result::graph::destroy(graph);
            Ok(Recording { device: self.clone(), graph: made? })
        }
    }

    /// Runs a recording behind everything that was started before.
    pub fn replay(&self, recording: &Recording) -> Result<(), String> {
        self.enter()?;
        // SAFETY: the graph and the stream are alive, and what its kernels read and write lives as long as the executor.
        unsafe { result::graph::launch(recording.graph, self.inner.stream) }.map_err(text("a recording does not start"))
    }

    /// A mark behind everything that was started.
    pub fn mark(&self) -> Result<Mark, String> {
        self.enter()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(text("no event"))?;
        let mark = Mark { device: self.clone(), event };
        mark.renew()?;
        Ok(mark)
    }

    /// Waits for everything that was started. An error is that of a kernel before.
    pub fn wait(&self) -> Result<(), String> {
        self.enter()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.inner.stream) }.map_err(text(SOME_KERNEL))
    }
}

impl Memory {
    /// Address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, at: usize, len: usize) -> Result<u64, String> {
        match at.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(self.address + at as u64),
            _ => Err(format!("{len} bytes at {at} end behind a memory of {}", self.bytes)),
        }
    }

    /// Writes bytes, behind everything that was started; returns when they may be dropped.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), String> {
        let address = self.check(at, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: the range lies inside; of memory that is not pinned the driver takes a copy before it returns.
        unsafe { result::memcpy_htod_async(address, bytes, self.device.inner.stream) }
            .map_err(text("a copy to the device"))
    }

    /// Reads bytes, behind everything that was started.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), String> {
        let address = self.check(at, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: the range lies inside; the target outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(bytes, address, self.device.inner.stream) }
            .map_err(text("a copy from the device"))?;
        self.device.wait()
    }

    /// Fills a range with one byte.
    pub fn fill(&self, at: usize, len: usize, byte: u8) -> Result<(), String> {
        let address = self.check(at, len)?;
        if len == 0 {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: the range lies inside.
        unsafe { result::memset_d8_async(address, byte, len, self.device.inner.stream) }.map_err(text("device memory"))
    }

    /// Copies a range to another place of the same memory that it does not overlap.
    pub fn copy_within(&self, from: usize, to: usize, len: usize) -> Result<(), String> {
        let (source, target) = (self.check(from, len)?, self.check(to, len)?);
        if len == 0 || from == to {
            return Ok(());
        }
        self.device.enter()?;
        // SAFETY: both ranges lie inside.
        unsafe { result::memcpy_dtod_async(target, source, len, self.device.inner.stream) }
            .map_err(text("a copy on the device"))
    }
}

impl Staging {
    /// Takes memory of this size.
    pub fn new(device: &Device, bytes: usize) -> Result<Staging, String> {
        let mark = device.mark()?;
        let start = match bytes {
            0 => std::ptr::null_mut(),
            // SAFETY: as many bytes are set to 0 as there are, before anything reads them.
            n => unsafe {
                let found = result::malloc_host(n, 0).map_err(text(&format!("{n} bytes that the device copies")))?;
                std::ptr::write_bytes(found.cast::<u8>(), 0, n);
                found.cast()
            },
        };
        Ok(Staging { device: device.clone(), start, bytes, used: 0, mark, is_marked: true })
    }

    /// Empties it, as soon as nothing in it is needed any more.
    pub fn begin(&mut self) -> Result<(), String> {
        self.end()?;
        self.mark.wait()?;
        self.used = 0;
        Ok(())
    }

    /// Room for so many bytes behind what is in use.
    fn piece(&mut self, len: usize) -> Option<usize> {
        let at = self.used.next_multiple_of(PIECE_BYTES);
        let end = at.checked_add(len).filter(|end| *end <= self.bytes)?;
        (self.used, self.is_marked) = (end, false);
        Some(at)
    }

    /// Has bytes written to memory of the device, behind everything that was started. What finds no room here is written all the same,
    /// and the host may have to wait for it.
    pub fn send(&mut self, to: &Memory, at: usize, bytes: &[u8]) -> Result<(), String> {
        to.check(at, bytes.len())?;
        let Some(own) = self.piece(bytes.len()) else { return to.write(at, bytes) };
        self.send_piece(own, to, at, bytes.len(), |piece| piece.copy_from_slice(bytes))
    }

    /// The same for bytes that `make` writes to where the device copies them from. They must find room.
    pub fn send_made(
        &mut self,
        to: &Memory,
        at: usize,
        len: usize,
        make: impl FnOnce(&mut [u8]),
    ) -> Result<(), String> {
        to.check(at, len)?;
        let own = self.piece(len).ok_or_else(|| format!("{len} bytes find no room among {}", self.bytes))?;
        self.send_piece(own, to, at, len, make)
    }

    fn send_piece(
        &mut self,
        own: usize,
        to: &Memory,
        at: usize,
        len: usize,
        make: impl FnOnce(&mut [u8]),
    ) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        let address = to.check(at, len)?;
        self.device.enter()?;
        // SAFETY: the range lies inside the memory, whose bytes were set to 0 at first, and no copy of it is under way: `piece` gives
        // it out once between two `begin`.
        let piece = unsafe { std::slice::from_raw_parts_mut(self.start.add(own), len) };
        make(piece);
        // SAFETY: both ranges lie inside; the piece is not touched again before `begin` has waited for the copy.
        unsafe { result::memcpy_htod_async(address, piece, self.device.inner.stream) }
            .map_err(text("a copy to the device"))
    }

    /// Has bytes of the device's memory brought here, behind everything that was started; gives the place where they will be.
    pub fn bring(&mut self, from: &Memory, at: usize, len: usize) -> Result<Range<usize>, String> {
        let address = from.check(at, len)?;
        let own = self.piece(len).ok_or_else(|| format!("{len} bytes find no room among {}", self.bytes))?;
        if len > 0 {
            self.device.enter()?;
            // SAFETY: both ranges lie inside; the piece is not touched again before the copy was waited for.
            unsafe {
                let piece = std::slice::from_raw_parts_mut(self.start.add(own), len);
                result::memcpy_dtoh_async(piece, address, self.device.inner.stream)
            }
            .map_err(text("a copy from the device"))?;
        }
        Ok(own..own + len)
    }

    /// Marks the end of what was asked for.
    pub fn end(&mut self) -> Result<(), String> {
        if !self.is_marked {
            self.mark.renew()?;
            self.is_marked = true;
        }
        Ok(())
    }

    /// Whether all that was asked for is done.
    pub fn is_done(&self) -> Result<bool, String> {
        Ok(self.is_marked && self.mark.is_reached()?)
    }

    /// What was brought, once it is there.
    pub fn brought(&mut self, place: Range<usize>) -> Result<&[u8], String> {
        self.end()?;
        self.mark.wait()?;
        if place.start > place.end || place.end > self.used {
            return Err(format!("{place:?} lies behind the {} bytes in use", self.used));
        }
        // SAFETY: the range lies inside what copies or `send` have written, and all copies are done.
        Ok(unsafe { std::slice::from_raw_parts(self.start.add(place.start), place.len()) })
    }
}

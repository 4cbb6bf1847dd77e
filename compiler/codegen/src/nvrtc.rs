//! The border to NVRTC: a shared library, loaded by path, and the few of its functions that are used.
//!
//! Nothing else of this crate is `unsafe`. The library stays loaded as long as [`Library`] lives.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type CompileProgram = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int) -> *const c_char;

/// NVRTC, loaded.
pub struct Library {
    create: Create,
    compile: CompileProgram,
    log_size: Size,
    log: Get,
    cubin_size: Size,
    cubin: Get,
    destroy: Destroy,
    version: Version,
    error_text: ErrorText,
    // After the functions, so that they are dropped before it.
    _library: libloading::Library,
    _builtins: Option<libloading::Library>,
}

impl Library {
    /// Loads the library at `path`; its table of built-in functions is loaded from beside it first, where it would not be found.
    pub fn open(path: &Path, builtins: Option<&Path>) -> Result<Library, String> {
        let load = |path: &Path| {
            // SAFETY: the file is NVIDIA's compiler library, which has no initialisers with conditions of their own.
            unsafe { libloading::Library::new(path) }.map_err(|e| format!("{} cannot be loaded: {e}", path.display()))
        };
        let builtins = builtins.map(load).transpose()?;
        let library = load(path)?;
        // SAFETY: names and types are those of the header `nvrtc.h`, unchanged since version 11.
        unsafe {
            let fault = |e: libloading::Error| format!("{} lacks a function: {e}", path.display());
            Ok(Library {
                create: *library.get::<Create>(b"nvrtcCreateProgram\0").map_err(fault)?,
                compile: *library.get::<CompileProgram>(b"nvrtcCompileProgram\0").map_err(fault)?,
                log_size: *library.get::<Size>(b"nvrtcGetProgramLogSize\0").map_err(fault)?,
                log: *library.get::<Get>(b"nvrtcGetProgramLog\0").map_err(fault)?,
                cubin_size: *library.get::<Size>(b"nvrtcGetCUBINSize\0").map_err(fault)?,
                cubin: *library.get::<Get>(b"nvrtcGetCUBIN\0").map_err(fault)?,
                destroy: *library.get::<Destroy>(b"nvrtcDestroyProgram\0").map_err(fault)?,
                version: *library.get::<Version>(b"nvrtcVersion\0").map_err(fault)?,
                error_text: *library.get::<ErrorText>(b"nvrtcGetErrorString\0").map_err(fault)?,
                _builtins: builtins,
                _library: library,
            })
        }
    }

    /// Version: major, minor.
    pub fn version(&self) -> Result<(i32, i32), String> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both addresses are of live integers.
        let code = unsafe { (self.version)(&mut major, &mut minor) };
        self.check(code)?;
        Ok((major, minor))
    }

    /// Translates a unit to machine code. The error is the compiler's log.
    pub fn translate(
        &self,
        name: &str,
        text: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<(Vec<u8>, String), String> {
        let c = |s: &str| CString::new(s).map_err(|_| format!("{name} holds a zero byte"));
        let (unit, file) = (c(text)?, c(&format!("{name}.cu"))?);
        let names = headers.iter().map(|(n, _)| c(n)).collect::<Result<Vec<_>, _>>()?;
        let texts = headers.iter().map(|(_, t)| c(t)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|o| c(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |of: &[CString]| of.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (names, texts, options) = (pointers(&names), pointers(&texts), pointers(&options));
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: every address is of a string or list that outlives the call; counts are those of the lists; the program
        // is used between its creation and its end only.
        unsafe {
            let made = (self.create)(
                &mut program,
                unit.as_ptr(),
                file.as_ptr(),
                texts.len() as c_int,
                texts.as_ptr(),
                names.as_ptr(),
            );
            self.check(made)?;
            let code = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let log = self.bytes(program, self.log_size, self.log);
            let cubin = if code == 0 { self.bytes(program, self.cubin_size, self.cubin) } else { Ok(Vec::new()) };
            (self.destroy)(&mut program);
            let log = log.map(|b| String::from_utf8_lossy(&b).trim_end_matches(['\0', '\n']).to_owned())?;
            match code {
                0 => Ok((cubin?, log)),
                code => Err(format!("{}\n{log}", self.text(code))),
            }
        }
    }

    /// What a pair of functions gives: first its size, then its bytes.
    ///
    /// # Safety
    /// `program` must be alive.
    unsafe fn bytes(&self, program: Program, size: Size, get: Get) -> Result<Vec<u8>, String> {
        let mut count = 0usize;
        // SAFETY: the buffer has the size that the library asked for.
        unsafe {
            self.check(size(program, &mut count))?;
            let mut bytes = vec![0u8; count];
            self.check(get(program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 { Ok(()) } else { Err(self.text(code)) }
    }

    fn text(&self, code: c_int) -> String {
        // SAFETY: the library gives the address of a constant string for every code.
        let text = unsafe { CStr::from_ptr((self.error_text)(code)) };
        text.to_string_lossy().into_owned()
    }
}

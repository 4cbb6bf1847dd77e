//! Where NVRTC is: a path given in the environment, a CUDA toolkit, or the package `nvidia-cuda-nvrtc` of a Python.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `doctor` and errors say.
pub const HOW_TO_GET_IT: &str =
    "install it with `pip install nvidia-cuda-nvrtc==13.0.88`, or set BEAM_NVRTC to the folder that holds libnvrtc.so";

/// Where the library lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    /// The library.
    pub library: PathBuf,
    /// Its table of built-in functions beside it.
    pub builtins: Option<PathBuf>,
}

/// Looks in all places, the environment first.
pub fn find() -> Option<Nvrtc> {
    if let Some(given) = std::env::var_os("BEAM_NVRTC") {
        // What is asked for by name is used or nothing is.
        return in_place(Path::new(&given));
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let toolkits = toolkits.chain([PathBuf::from("/usr/local/cuda")]).flat_map(|t| [t.join("lib64"), t.join("lib")]);
    toolkits.chain(packages()).find_map(|folder| in_place(&folder))
}

/// The library in a folder, or at a path.
fn in_place(place: &Path) -> Option<Nvrtc> {
    let folder = if place.is_file() { place.parent()? } else { place };
    let mut names: Vec<String> =
        std::fs::read_dir(folder).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let builtins = names.iter().find(|n| n.starts_with("libnvrtc-builtins.so.")).map(|n| folder.join(n));
    if place.is_file() {
        return Some(Nvrtc { library: place.to_path_buf(), builtins });
    }
    // `.alt` twins are for programs that fork; the shortest name is the one that all link to.
    let plain = |n: &&String| n.starts_with("libnvrtc.so");
    let library = names.iter().filter(plain).min_by_key(|n| n.len())?;
    Some(Nvrtc { library: folder.join(library), builtins })
}

/// Folders where the package puts the library, of every Python that can be asked or guessed.
pub(crate) fn packages() -> Vec<PathBuf> {
    let mut sites: Vec<PathBuf> = Vec::new();
    let ask = "import site, sysconfig; print(sysconfig.get_path('purelib')); print(site.getusersitepackages())";
    for python in ["python3", "python"] {
        let answer = Command::new(python).args(["-c", ask]).output();
        if let Ok(answer) = answer
            && answer.status.success()
        {
            sites.extend(String::from_utf8_lossy(&answer.stdout).lines().map(PathBuf::from));
        }
    }
    if let Some(own) = std::env::var_os("VIRTUAL_ENV") {
        let versions = std::fs::read_dir(PathBuf::from(own).join("lib")).into_iter().flatten().flatten();
        sites.extend(versions.map(|v| v.path().join("site-packages")));
    }
    let folders = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];
    sites.iter().flat_map(|site| folders.map(|f| site.join(f))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_and_its_table_are_found_in_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in
            ["libnvrtc.alt.so.13", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0"]
        {
            std::fs::write(folder.path().join(name), b"").expect("a file");
        }
        let found = in_place(folder.path()).expect("found");
        assert_eq!(found.library, folder.path().join("libnvrtc.so.13"));
        assert_eq!(found.builtins, Some(folder.path().join("libnvrtc-builtins.so.13.0")));
        assert_eq!(in_place(&folder.path().join("nothing")), None);
    }
}

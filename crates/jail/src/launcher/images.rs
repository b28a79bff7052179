//! Roots of images, one for each that boxes are made of: mounted when the first box asks for it, gone with the last.
//!
//! ```text
//! /images/N/layer   the image's directory, read-only: what a box's own layer lies over
//! /images/N/root    the same as boxes see it, with /dev
//! ```
//!
//! Boxes see an overlay over it and nothing more: a bind mount would tell them where on the host it lies.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::CWD;
use sandcrate_sys::mount::{Reach, set_attributes};

use super::Launcher;
use crate::message::{Failure, ImageRoot, Step};
use crate::mounts::{PLAIN_READ_ONLY, attach, clone_at, clone_with, detach, make_lower_overlay};
use crate::template::{IMAGES, ROOT as HOST_ROOT};

/// An image that boxes of this launcher are made of.
#[derive(Debug)]
pub(super) struct MountedImage {
    /// As the daemon names it.
    id: String,
    number: u64,
}

/// What a box lies on.
pub(super) fn root_of(image: Option<u64>) -> String {
    image.map_or_else(|| HOST_ROOT.to_owned(), |number| format!("{IMAGES}/{number}/root"))
}

pub(super) fn layer_of(number: u64) -> String {
    format!("{IMAGES}/{number}/layer")
}

impl Launcher {
    /// The number of an image's root, which is made when it is not there.
    pub(super) fn mount_image(&mut self, image: &ImageRoot, directory: &OwnedFd) -> Result<u64, Failure> {
        if let Some(known) = self.images.iter().find(|known| known.id == image.id) {
            return Ok(known.number);
        }
        self.mounted_images += 1;
        let number = self.mounted_images;
        let made = self.build_image(number, image, directory);
        if let Err(failure) = made {
            discard(number);
            return Err(failure);
        }
        self.images.push(MountedImage { id: image.id.clone(), number });
        Ok(number)
    }

    fn build_image(&self, number: u64, image: &ImageRoot, directory: &OwnedFd) -> Result<(), Failure> {
        let (layer, root) = (layer_of(number), root_of(Some(number)));
        for place in [&layer, &root] {
            fs::create_dir_all(place).step_with(|| format!("making {place}"))?;
        }
        let mount = self.among_host_mounts(|| self.clone_checked(&image.path, directory.as_fd()))?;
        set_attributes(mount.as_fd(), Reach::Tree, PLAIN_READ_ONLY, None).step("protecting the image")?;
        attach(&mount, &layer).step("attaching the image")?;
        let seen = make_lower_overlay(&[&layer, "/empty"], self.mapping.is_rootless())
            .or_else(|_| clone_with(&layer, Reach::One, PLAIN_READ_ONLY))
            .step("mounting the image")?;
        attach(&seen, &root).step("attaching the image's root")?;
        let devices = clone_at(CWD, format!("{HOST_ROOT}/dev"), Reach::Tree).step("cloning /dev")?;
        attach(&devices, format!("{root}/dev")).step("attaching /dev to the image's root")
    }

    /// Forgets an image that no box is made of any more.
    pub(super) fn release_image(&mut self, number: u64) {
        if !self.boxes.values().any(|record| record.image == Some(number)) {
            self.images.retain(|known| known.number != number);
            discard(number);
        }
    }
}

/// Whatever there is of it. Boxes have copies of their own.
fn discard(number: u64) {
    for place in [root_of(Some(number)), layer_of(number)] {
        let _ = detach(&place);
        let _ = fs::remove_dir(&place);
    }
    let _ = fs::remove_dir(format!("{IMAGES}/{number}"));
}

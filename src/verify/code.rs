//! The findings that verification can make: their stable codes, names, severities, and what to do about each.
//!
//! One table. A code never changes its meaning and is never used again for another one.

/// How bad a finding is, from the best; a file is as bad as its worst finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Good to know.
    Note,
    /// Worth a look; what is there is whole.
    Warning,
    /// Explained by a crash of our own writer; nothing that was acknowledged is lost.
    NeedsRecovery,
    /// Of a format that this version does not know.
    OtherFormat,
    /// It could not be looked at.
    Unreadable,
    /// It is not what was asked for.
    Conflict,
    /// It lost something, or says something that cannot be.
    Damage,
}

impl Severity {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::NeedsRecovery => "needs-recovery",
            Self::OtherFormat => "other-format",
            Self::Unreadable => "unreadable",
            Self::Conflict => "conflict",
            Self::Damage => "damage",
        }
    }
}

macro_rules! codes {
    ($($variant:ident $code:literal $name:literal $severity:ident $todo:literal)*) => {
        /// What a finding is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = concat!("`", $code, " ", $name, "`")] $variant,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// `TK001` and so on.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// How bad it is, at worst.
            pub fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)* }
            }

            /// What to do about it.
            pub fn what_to_do(self) -> &'static str {
                match self { $(Self::$variant => $todo,)* }
            }
        }
    };
}

codes! {
    TornTail "TK001" "torn-tail" NeedsRecovery
        "nothing by hand: the next writing command keeps the bytes in quarantine, cuts them off and goes on"
    MissingNewline "TK002" "missing-newline" NeedsRecovery
        "nothing by hand: the record counts, and the next write begins with the newline"
    EmptyJournal "TK003" "empty-journal" NeedsRecovery
        "nothing by hand if the session is new: the next `turnkeep admit` writes the genesis; else bring back a copy"
    BranchBehind "TK004" "branch-behind" NeedsRecovery
        "`turnkeep recover` writes what the session file lacks; where it waits (14), once that somebody has acted"

    NotUtf8 "TK010" "not-utf8" Damage
        "bring back a copy, or go on behind it with `turnkeep recover SESSION --salvage --why TEXT`"
    Framing "TK011" "framing" Damage
        "bring back a copy, or go on behind it with `turnkeep recover SESSION --salvage --why TEXT`"
    HashMismatch "TK012" "hash-mismatch" Damage
        "the bytes were changed after they were written: bring back a copy, or go on behind them with `turnkeep recover SESSION --salvage --why TEXT`"
    Envelope "TK013" "envelope" Damage
        "another program wrote this line: find it, then `turnkeep recover SESSION --salvage --why TEXT`"
    UnknownKind "TK014" "unknown-kind" Damage
        "read it with the version that wrote it; this version does not write behind it"
    Fields "TK015" "fields" Damage
        "another program wrote this line: find it, then `turnkeep recover SESSION --salvage --why TEXT`"
    TooDeep "TK016" "too-deep" Damage
        "another program wrote this line: find it, then `turnkeep recover SESSION --salvage --why TEXT`"
    Spelling "TK017" "spelling" Damage
        "another program wrote this line: find it, then `turnkeep recover SESSION --salvage --why TEXT`"
    Chain "TK018" "chain" Damage
        "records are missing, doubled or moved: bring back a copy, or go on behind it with `turnkeep recover SESSION --salvage --why TEXT`"
    Base "TK019" "base" Damage
        "another program wrote this record: find it, then `turnkeep recover SESSION --salvage --why TEXT`"
    IllegalTransition "TK020" "illegal-transition" Damage
        "see the damage before it first; alone it means that another program wrote this record"
    Policy "TK021" "policy" Damage
        "another program wrote this record: find out whether the call ran again"
    NoGenesis "TK022" "no-genesis" Damage
        "the first record names the session, and `--salvage` needs it: bring back a copy, or move the file away and begin anew"
    DamagedTail "TK023" "damaged-tail" Damage
        "a crash does not explain these bytes: bring back a copy, or `turnkeep recover SESSION --salvage --why TEXT`"
    QuarantineMissing "TK024" "quarantine-missing" Damage
        "bring back the file: it holds bytes that were cut off"
    QuarantineDiffers "TK025" "quarantine-differs" Damage
        "bring back the file: its bytes are not those that were cut off"
    RepairMismatch "TK026" "repair-mismatch" Damage
        "the bytes were changed after somebody acknowledged them as damaged: compare with a copy"

    OtherSession "TK030" "other-session" Conflict
        "the file was renamed or copied: give it the name that its genesis tells, or take it out of the state root"
    HeadMissing "TK031" "head-missing" Conflict
        "records were removed from its end or exchanged, or the head is of another journal: bring back a copy"
    Link "TK032" "link" Conflict
        "put the file or folder itself there: links inside a state root are refused"
    FileMissing "TK033" "file-missing" Conflict
        "the heads file names a journal that is gone: bring it back, or remove its line"

    OtherFormat "TK040" "other-format" OtherFormat
        "use the version of turnkeep that wrote it; it is not called damaged"
    Unreadable "TK041" "unreadable" Unreadable
        "see to it that the file can be read, and look again"

    AcknowledgedDamage "TK050" "acknowledged-damage" Warning
        "somebody went on behind it with `--salvage`; `--strict` calls it damage"
    OpenToOthers "TK051" "open-to-others" Warning
        "`chmod go=` it: folders of a state root are 0700, its files 0600"
    ForeignOwner "TK052" "foreign-owner" Warning
        "another user can change it: make it your own"
    LeftoverFile "TK053" "leftover-file" Note
        "nothing needs it; look at it before you remove it"
    QuarantineUnchecked "TK054" "quarantine-unchecked" Note
        "name the journal inside its state root to have the cut bytes checked too"
    OtherName "TK055" "other-name" Warning
        "what is done to it under its other name is done to it here: find that name (`find -samefile`), and make it a copy"

    OpenTurn "TK060" "open-turn" Note
        "`turnkeep inspect SESSION` tells how far it is"
    OwnerGone "TK061" "owner-gone" Note
        "`turnkeep recover SESSION` goes on with the turn"
    RecoverUnfinished "TK062" "recover-unfinished" Note
        "`turnkeep recover SESSION` goes on where it stopped"
    Parked "TK063" "parked" Note
        "`turnkeep recover SESSION --unpark --by WHO --why TEXT` once a person has looked"
    Undelivered "TK064" "undelivered" Note
        "`turnkeep inspect SESSION` tells whether somebody is at it"

    TreeMissing "TK070" "tree-missing" Damage
        "put the session file back, or name its new place with --tree-file; the journal has every committed step"
    BranchContent "TK071" "branch-content" Damage
        "somebody changed the session file: compare the entry with the journal (`turnkeep inspect SESSION --records`)"
    BranchMarker "TK072" "branch-marker" Damage
        "the journal lost records that the session file knows: bring back a copy of the journal"
    BranchEntryMissing "TK073" "branch-entry-missing" Damage
        "the session file lost entries that were durable: `turnkeep recover` writes them anew (of a parked turn with --unpark); what is missing then, of a closed turn, only a copy brings back"
    EntryUnknown "TK074" "entry-unknown" Damage
        "the journal lost records that the session file knows, or another session writes to this file"
    TreeOther "TK075" "tree-other" Damage
        "another session file stands in its place: put the right one back, or name it with --tree-file"
    TreeUnchecked "TK076" "tree-unchecked" Note
        "see to the journal first, then check the session file"
    BranchPlace "TK077" "branch-place" Damage
        "somebody changed the session file: put the entry back where the journal has it, or bring back a copy"

    TreeEmpty "TK080" "tree-empty" NeedsRecovery "the agent, or `turnkeep recover`, writes its header"
    TreeTornTail "TK081" "tree-torn-tail" NeedsRecovery
        "nothing by hand: whoever writes next ends the line first, and its bytes stay"
    TreeNulTail "TK082" "tree-nul-tail" NeedsRecovery
        "nothing by hand: whoever writes next ends the line first, and its bytes stay"
    TreeNoNewline "TK083" "tree-no-newline" Note "nothing: a newline is written before anything is appended"
    TreeBom "TK084" "tree-bom" Damage "remove the first three bytes"
    TreeHeaderMissing "TK085" "tree-header-missing" Damage "put the header line back as the first line"
    TreeHeaderInvalid "TK086" "tree-header-invalid" Damage "put the right header line back"
    TreeOlderVersion "TK087" "tree-older-version" Note "let Pi open the session once"
    TreeNewerVersion "TK088" "tree-newer-version" Warning "use a version of turnkeep that knows it"
    TreeCrlf "TK089" "tree-crlf" Note "nothing: Pi reads it"
    TreeNoEntry "TK090" "tree-no-entry" Damage "find out what wrote the line, and take it out"
    TreeSecondHeader "TK091" "tree-second-header" Note "nothing: Pi ignores it"
    TreeBlankLine "TK092" "tree-blank-line" Note "nothing: Pi ignores it"
    TreeDeadLine "TK093" "tree-dead-line" Damage "bring back a copy if an entry needs it; else leave it"
    TreeNulLine "TK094" "tree-nul-line" Damage "bring back a copy if an entry needs it; else leave it"
    TreeTooDeep "TK095" "tree-too-deep" Damage "such an entry can be kept but not copied to a branch"
    TreeInvalidUtf8 "TK096" "tree-invalid-utf8" Note "nothing: it reads as U+FFFD, as in Pi"
    TreeLoneSurrogate "TK097" "tree-lone-surrogate" Note "a provider may refuse it"
    TreeParentMissing "TK098" "tree-parent-missing" Damage "bring back a copy, or give the entry its parentId"
    TreeDoubledKey "TK099" "tree-doubled-key" Damage "take one of the two keys out"
    TreeMessageMissing "TK100" "tree-message-missing" Damage "bring back a copy"
    TreeTypeMissing "TK101" "tree-type-missing" Warning "find out what wrote the entry"
    TreeDoubledId "TK102" "tree-doubled-id" Damage "give one of the entries another id, and mend its children"
    TreeCompactionTarget "TK103" "tree-compaction-target" Damage "bring back a copy with the entry that is kept"
    TreeUnknownParent "TK104" "tree-unknown-parent" Damage "bring back a copy with the parent"
    TreeCycle "TK105" "tree-cycle" Damage "bring back a copy, or hang the first entry where it belongs"
    TreeForked "TK106" "tree-forked" Note "`turnkeep inspect SESSION --draw-tree` shows the branches"
    TreeLeafUndefined "TK107" "tree-leaf-undefined" Damage "take the last line out, or give it an id"
    TreeLeafMissing "TK108" "tree-leaf-missing" Damage "bring back a copy with the entry that the turn was admitted on"
    TreeBookkeepingLeaf "TK109" "tree-bookkeeping-leaf" Note "nothing: Pi goes on from there"
    TreeResultElsewhere "TK110" "tree-result-elsewhere" Damage "a provider refuses such a context: branch before it"
    TreeUserBetween "TK111" "tree-user-between" Note "a provider may refuse such a context"
    TreeResultOrphan "TK112" "tree-result-orphan" Damage
        "a provider refuses such a context: branch before it (`/tree` in Pi, `admit --leaf`)"
    TreeResultDoubled "TK113" "tree-result-doubled" Damage
        "a provider refuses such a context: branch before it (`/tree` in Pi, `admit --leaf`)"
    TreeCompactionCut "TK114" "tree-compaction-cut" Damage
        "a provider refuses such a context: branch before the compaction (`/tree` in Pi, `admit --leaf`)"
    TreeCallUnanswered "TK115" "tree-call-unanswered" Note
        "nothing for the request: Pi mends it; find out whether the tool ran"
}

impl Code {
    /// The code of what [`crate::tree::check()`] found.
    pub fn of_tree(name: &str) -> Self {
        let same = |code: &&Self| code.name() == name;
        // A test holds the two lists against each other; a name that slipped through is told all the same.
        Self::ALL.iter().find(same).copied().unwrap_or(Self::TreeNoEntry)
    }
}

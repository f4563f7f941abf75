-- back_off: an upstream is overloaded, so cut the limit in force to what it bears, or grant nothing until
-- the time that it told; then let the limit rise again. See ramp.lua.
--
-- ARGV     pause     in ms from now on. 0 with a token is an overload that tells no time, and without
--                    one the end of the back-off that runs
--          token     of the permit that met the overload. Where it is older than the back-off that
--                    runs, the overload is the same, and only makes the pause longer. '' for one
--                    that is newer in any case, and cuts nothing
--          number    number of this operation, which runs at most once
--          by        who begins it, as a text
--          [key]     whose back-off it is, unless it is that of all requests
-- RETURNS  {tag, next_ms, waiting, own_grants, begun}, begun being the limit that a back-off keeps
--          where one began, and else 0
--
-- uses: ramp (back_off_in end_of ramp_of slow_start_of), holders (allow_writes_at_maxmemory append
--       exact load_state purge), hubs (already_ran note_call), serve (notify_head reply_head serve)

local KEEPS, KEEPS_FIRST = 0.9, 0.5  -- share of the use that is kept: near what was found, and before
local RESTS, SHORTEST_REST, LONGEST_REST = 12, 100, 30000  -- in usual holds, in ms and in ms
local UNKNOWN_HOLD = 100  -- in ms, before anybody has told one
local PAUSES = 5  -- a rest lasts for as many told pauses, too, near what was found
local FIRST_PAUSE, LONGEST_PAUSE = 500, 2000  -- in ms, where nothing is left to cut

local pause, token = tonumber(ARGV[5]), tonumber(ARGV[6])
local number, by, key = tonumber(ARGV[7]), ARGV[8], ARGV[9]

-- How many permits are in use, of *key* where there is one, and for how many ms one is held usually.
local function use_and_hold()
  local used = state.holding + state.heavy
  -- The usual hold is in ms times permits. One permit is held as long, however many a holder has.
  local hold = usual_hold < 0 and UNKNOWN_HOLD
    or math.max(1, math.ceil(usual_hold * math.max(1, state.holding) / math.max(1, used)))
  return key and (tonumber(call('ZSCORE', uses, key)) or 0) or used, hold
end
-- The back-off that begins now, while *ramp* of *before* is in force, if that runs.
local function begun(before, ramp)
  local used, hold = use_and_hold()
  local is_found = before and ramp >= before.kept  -- and otherwise it is still sought
  local kept = before and before.kept or 1
  local lasts = math.max(pause, before and before.ends - now or 0)
  if token then
    used = math.min(used, ramp > 0 and ramp or kept)  -- one heavy permit may be more
    if before and kept == 1 and used <= 1 and lasts == 0 then
      local lasted = before.ends - math.floor(before.began / 1000)
      lasts = math.min(math.max(FIRST_PAUSE, 2 * lasted), LONGEST_PAUSE)
    end
    kept = math.max(1, math.floor((is_found and KEEPS or KEEPS_FIRST) * used))
  end
  local rest = math.max(RESTS * hold, SHORTEST_REST, (is_found and PAUSES or 1) * pause)
  local after = {
    ends = now + lasts, began = math.max(state.counter, now_us), step = math.min(hold, LONGEST_REST),
    rest = math.min(kept > 1 and rest or math.max(2 * hold, SHORTEST_REST), LONGEST_REST),
    kept = kept, by = by,
  }
  if lasts == 0 then after.ends = now - slow_start_of(after) end
  return after
end

load_state()
local begins, keeps = false, 0
if not already_ran(number, 'changes') then
  allow_writes_at_maxmemory()
  purge()  -- what has expired is not in use
  note_call(number, 'changes')
  local text, after = state.back_off, nil
  if key then text = keyed.back_off_of(key) end
  local ramp, runs = ramp_of(text)
  local before = runs and back_off_in(text)
  if pause > 0 or token then
    begins = not before or not token or token > before.began
    after = begins and begun(before, ramp) or before
    keeps = begins and after.kept or 0
    if pause > 0 then after.ends = math.max(after.ends, now + pause) end
    text = table.concat({ exact(after.ends), exact(after.began), exact(after.step), exact(after.kept),
      exact(after.rest), after.by }, ':')
  else
    text = nil
  end
  if key then
    keyed.set_back_off(key, text)
  elseif text then
    call('HSET', meta, 'back_off', text)
  else
    call('HDEL', meta, 'back_off')
  end
  keep(meta, (after and end_of(after) - now or 0) + SLACK)
  if not key then
    state.back_off = text
    state.ramp, state.ramp_changes = ramp_of(text)
  end
  -- What next_ms said was that of another back-off, or of none.
  if begins or not after or pause > 0 and ramp > 0 then notify_head(key) end
end
purge()
serve()
return append(reply_head(), { keeps })

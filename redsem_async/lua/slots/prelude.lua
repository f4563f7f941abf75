-- slots prelude: every permit stands for one of the things that the clients list, which is its
-- slot. No two holders have the same.
--
-- A slot is known by its place in the list, from 0 on. The lists of all clients begin alike. A
-- request gets slots of its own list, because the lowest free slots are given, and its limit is
-- the length of its list.

local LIST = 'list'

slotted = {}
local taken          -- slot -> id of the holder, or of a grant that is not written yet
local taken_count    -- how many slots are taken
local lowest = 0     -- all slots below are taken
local slots_by_id = {}  -- of grants of this call
slotted.told = {}    -- number and slots of each grant of this call to the caller's hub

-- Reads which slots are taken. Slots of an id that is no holder are free: the holder was evicted,
-- for example. Returns how many ids have slots.
local function load_taken()
  taken, taken_count, lowest = {}, 0, 0
  local ids, texts = {}, {}
  local fields = call('HGETALL', slots)
  for i = 1, #fields, 2 do
    if fields[i] ~= LIST then
      ids[#ids + 1], texts[#texts + 1] = fields[i], fields[i + 1]
    end
  end
  if #ids == 0 then return 0 end
  local count, orphans = 0, {}
  for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
    if expiry then
      count = count + 1
      for slot in string.gmatch(texts[i], '%d+') do
        taken[tonumber(slot)] = ids[i]
        taken_count = taken_count + 1
      end
    else
      orphans[#orphans + 1] = ids[i]
    end
  end
  if #orphans > 0 then call('HDEL', slots, unpack(orphans)) end
  return count
end

-- The permits in use, where *in_use* are counted: the slots of what has expired and is not removed
-- yet are not free. Where holders have no slots, the slots were lost.
function slotted.used(in_use)
  local lost = load_taken() < holder_count
  return math.max(in_use, lost and ALL_TAKEN or taken_count)
end

function slotted.check_types()
  call('HLEN', slots)
end

-- Whether the slots of the holder *id* were lost.
function slotted.lost(id)
  if slotted.all_known == nil then
    slotted.all_known = call('HLEN', slots) > call('ZCARD', holders)  -- one is the list
  end
  return not slotted.all_known and call('HGET', slots, id) == false
end

-- The slots of the holder *id*.
function slotted.of(id)
  return slots_by_id[id] or call('HGET', slots, id) or ''
end

-- Gives the lowest free slots to *id*, unless it has some already. Returns them.
function slotted.assign(id, permits)
  if slots_by_id[id] then return slots_by_id[id] end
  if not taken then load_taken() end
  local found = {}
  while #found < permits do
    if not taken[lowest] then
      taken[lowest] = id
      found[#found + 1] = lowest
    end
    lowest = lowest + 1
  end
  slots_by_id[id] = table.concat(found, '+')
  return slots_by_id[id]
end

-- Gives *wanted* slots to *id*, which adopts them.
function slotted.claim(id, wanted)
  if not taken then load_taken() end
  for slot in string.gmatch(wanted, '%d+') do taken[tonumber(slot)] = id end
  slots_by_id[id] = wanted
end

function slotted.removed(ids)
  call('HDEL', slots, unpack(ids))
  if not taken then return end
  local gone = {}
  for _, id in ipairs(ids) do
    gone[id] = true
    slots_by_id[id] = nil
  end
  for slot, id in pairs(taken) do
    if gone[id] then taken[slot] = nil end
  end
  lowest = 0
end

-- Takes the slots back from *grants*, which are not written.
function slotted.undelivered(grants)
  for _, grant in ipairs(grants) do
    for slot in string.gmatch(slots_by_id[grant[1]], '%d+') do taken[tonumber(slot)] = nil end
    slots_by_id[grant[1]] = nil
  end
  lowest = 0
end

function slotted.granted(grants, longest)
  for _, grant in ipairs(grants) do
    local id, text = grant[1], slotted.assign(grant[1], grant[4])
    call('HSET', slots, id, text)
    if string.sub(id, 1, #hub) == hub then
      append(slotted.told, { tonumber(string.match(id, '%d+$')), text })
    end
  end
  keep(slots, longest)
end

-- Compares the list that the caller declares, 'length:slot,slot,...', with that of the other
-- clients: while the semaphore is in use, one has to begin with the other, and it has to have the
-- slots of *id*, if that is given. Returns the length; or else nil, and the error SLOTS with the
-- list in use.
function slotted.compare(declared, id)
  local length, own = string.match(declared, '^(%d+):(.*)$')
  local theirs = call('HGET', slots, LIST)
  local in_use = waiting > 0 or call('ZCOUNT', holders, '(' .. exact(now), '+inf') > 0
  slotted.longest = own
  if theirs and in_use then
    local shorter, longer = own .. ',', theirs .. ','
    if #shorter > #longer then shorter, longer = longer, shorter end
    if string.sub(longer, 1, #shorter) ~= shorter then
      return nil, redis.error_reply('SLOTS ' .. theirs)
    end
    if #theirs > #own then slotted.longest = theirs end
    for slot in string.gmatch(id and slotted.of(id) or '', '%d+') do
      if tonumber(slot) >= tonumber(length) then
        return nil, redis.error_reply('SLOTS ' .. theirs)
      end
    end
  end
  return length
end
-- Notes the list that was compared.
function slotted.note_list(lease)
  call('HSET', slots, LIST, slotted.longest)
  keep(slots, liveness_timeout(lease))
end

-- The list, and the slots of holders that *held* has, four values for each, as status lists them.
function slotted.list(held)
  local listed = { call('HGET', slots, LIST) or '' }
  for i = 1, #held, 4 do listed[#listed + 1] = slotted.of(held[i]) end
  return listed
end

function slotted.keep(need)
  keep(slots, need)
end
function slotted.delete()
  call('UNLINK', slots)
end
-- *grants* of the caller's hub, with the slots of all that this call granted to it.
function slotted.tell(grants)
  return { grants, slotted.told }
end
